"""Indexes for retrieval-based drafting, one data structure per file, stored in numpy arrays.

For one request: `SuffixAutomaton`, `SuffixTree`, `AdjacencyTable`, `NGramProbabilities`. Across requests,
saved and loaded by `store`: `SuffixArray`, `StaticAutomaton`, `SuffixTree`, `TrigramTable`, `AdjacencyTable`,
`NGramProbabilities`, `HiddenStateIndex`.

Concurrent reads of an index are safe as long as no thread writes to it.
"""

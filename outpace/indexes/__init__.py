"""Indexes of text for methods that draft from text: one idea per file, each on plain arrays.

Of one request: `SuffixAutomaton`, `SuffixTree`, `AdjacencyTable`, `NGramProbabilities`. Across requests,
saved and loaded by `store`: `SuffixArray`, `StaticAutomaton`, `SuffixTree`, `TrigramTable`, `AdjacencyTable`,
`NGramProbabilities`, `HiddenStateIndex`.

Any number of threads may read an index while none writes it.
"""

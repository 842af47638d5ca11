"""Indexes of text for drafting without a trained drafter: one idea a file, each on plain arrays.

In one request: `SuffixAutomaton`, `SuffixTree`, `AdjacencyTable`, `NGramProbabilities`. Across requests, saved and loaded by
`store`: `SuffixArray`, `StaticAutomaton`, `SuffixTree`, `TrigramTable`, `AdjacencyTable`, `NGramProbabilities`, `DenseIndex`.

Any number of threads may read an index while none writes it.
"""

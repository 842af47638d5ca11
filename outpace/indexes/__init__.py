"""Indexes for retrieval-based drafting that several methods share, one data structure per file, stored in
numpy arrays. Those of one method stand in the folder of its recipe.

For one request: `SuffixAutomaton`. Across requests, saved and loaded by `store`: `SuffixArray`,
`StaticAutomaton`, `TokenCounts`.

Concurrent reads of an index are safe as long as no thread writes to it.
"""

"""Everything that names a private thing of vLLM.

`versions` says which releases are known, `names` what we use of each and checks it, `hooks` runs a
function once a module is imported. Nothing else in the package may reach into vLLM but through
`vllm` names that are imported in `attention` and `indexer` and listed in `names`.
"""

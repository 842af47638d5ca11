"""Names of published methods that have no recipe yet, for an error message other than that for a typing
error."""

PLANNED = frozenset(
    """
    adaeagle adaspec arbitrage aurora chimera clasp confu coral cosine cspd dart deer del-decoding
    diffuspec direct-alignment disco distillspec domain-drafter double dovetail draft-design dream dsp
    dultra duodecoding ead easyspec exp3-spec falcon fastdraft flash fr-spec fspad
    glide-cape gsd gto gumiho hedge-spec hivis jakiro judge-decoding kangaroo knn-ssd lantern
    latency-aware-tts layerskip longspec magicdec medusa-typical mirror-sd mulo-sd
    multilingual-drafter online-sd owl parallelspec pearl polybasic quicksilver ralmspec ralmspec-knnlm
    rapid reflective-verification s2d s4c scd scylla specbranch specdec-pp specdiff
    specdiff2 specee specextend speckv specmquant specpc specpv specreason speculative-cascades
    speculative-rag speculative-streaming speculative-thinking speculative-verdict specvlm sprinter srm
    staged-sd stree swift syntax-aligned-medusa taps tlt ucb-spec vispec vocab-trim
    """.split()
)


def is_planned(name: str) -> bool:
    """Whether this is a published method without a recipe; dashes do not count (`eagle-2` is `eagle2`)."""
    return name.replace("-", "") in {each.replace("-", "") for each in PLANNED}

"""Names of published methods that have no recipe, for an error message other than that for a typing error."""

# they train a draft model, which another method uses
TRAINED = frozenset("adaspec direct-alignment distillspec domain-drafter fastdraft".split())

# they plan, which a program does that is not installed
PROGRAMS = frozenset({"draft-design"})

PLANNED = frozenset(
    """
    arbitrage confu cspd dream dsp flash glide-cape gsd hivis lantern longspec
    magicdec mulo-sd owl ralmspec ralmspec-knnlm rapid specextend speckv specpc
    specpv specreason speculative-rag speculative-streaming speculative-thinking
    speculative-verdict specvlm srm vispec
    """.split()
)


def why_missing(name: str) -> str | None:
    """The reason why this published method has no recipe; None if it is not known. Dashes do not count
    (`fast-draft` is `fastdraft`)."""
    plain = name.replace("-", "")
    for known in TRAINED:
        if plain == known.replace("-", ""):
            return (
                f"{known} is a way to train a draft model: use `outpace train {known}`, then the method "
                "speculative-sampling with what it writes"
            )
    for program in PROGRAMS:
        if plain == program.replace("-", ""):
            module = program.replace("-", "_")
            return f"{program} chooses draft models: run python -m benchmarks.{module} from a clone"
    if plain in {each.replace("-", "") for each in PLANNED}:
        return (
            f"{name} is a published method that outpace does not have yet; `outpace list` shows those it has"
        )
    return None

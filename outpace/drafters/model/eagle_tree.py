"""The static tree of EAGLE (Li et al. 2024): 25 tokens, most of them below the most probable ones."""

from outpace.core.tree import Shape

# ranks of the tokens on each path, by depth
PATHS = (
    ("0", "1", "2", "3"),
    ("00", "01", "02", "10", "11", "20", "21", "30"),
    ("000", "001", "002", "010", "011", "020", "021", "100"),
    ("0000", "0001", "0002"),
    ("00000", "00001"),
)


def _shape() -> Shape:
    index = {"": 0}
    parents: list[int] = []
    for path in (path for level in PATHS for path in level):
        parents.append(index[path[:-1]])
        index[path] = len(parents)
    return Shape(tuple(parents))


SHAPE = _shape()

"""Content words for generated tasks, split into a training and a held-out vocabulary by a checksum of the
word."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

HELD_OUT_SHARE = 5  # one of five words is held out of the training tasks

NOUNS = (
    "apple river stone lamp garden window letter market bridge forest castle mirror basket candle hammer "
    "ladder pencil kettle carpet engine button bottle blanket drawer island valley harbour tunnel station "
    "museum library kitchen village meadow canyon desert glacier lantern compass anchor feather pebble "
    "saddle wagon violin drum trumpet piano flute orchard vineyard stable cottage tower palace temple cabin "
    "tent boat train plane rocket bicycle tractor spade shovel bucket needle thread ribbon jacket scarf "
    "mitten helmet boot sandal pocket wallet ticket parcel stamp poster painting statue puzzle marble kite "
    "balloon whistle rope chain wheel gear spring lever magnet mirror prism crystal"
).split()
NAMES = (
    "Ada Ben Cleo Dan Eva Finn Gia Hugo Iris Jon Kira Leo Mia Nils Ona Paul Rosa Sam Tess Uma Vera Will "
    "Yara Zoe Arlo Bea Carl Dora Emil Faye Gus Hana Ivan June Kai Lena Milo Nora Otto Pia Remy Sara Theo "
    "Ursa Vito Wren Alma Bruno Clara Diego Elsa Felix Greta Henry Ines Jonas Klara Lukas Marta Noah Olga "
    "Petra Quinn Ruth Silas Tilda Viktor"
).split()
ADJECTIVES = (
    "red green blue small large quiet loud bright dark heavy light warm cold dry wet old new clean dusty "
    "sharp smooth round flat narrow wide early late simple hidden broken golden silver wooden empty full "
    "gentle rapid steady rusty hollow polished crooked faded solid brittle ancient modern famous ordinary "
    "secret distant"
).split()
PARTS = (
    "total count value price size name index limit offset width height length result buffer token level "
    "score weight speed depth state order group label title color shape angle point line page user owner "
    "event record field column table entry header footer message status reason source origin amount balance "
    "discount margin factor ratio delay timeout interval budget quota volume batch cursor parent child "
    "sibling branch target worker parser reader writer handler loader filter mapper builder counter window "
    "channel stream socket session request response payload cache"
).split()
ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh st t tr v w z".split()
VOWELS = "a e i o u ai ea oo".split()
CODAS = ["", "", "", "l", "n", "r", "s", "t", "m", "x"]


def is_held_out(word: str) -> bool:
    """Whether a word belongs to the held-out vocabulary; case-insensitive."""
    return zlib.crc32(word.lower().encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True)
class Words:
    """Random content words from the training or held-out vocabulary: all words of a task beyond its
    template."""

    random: random.Random
    held_out: bool

    def draw(self, words: Sequence[str]) -> str:
        """A random word of a list that belongs to this split."""
        while True:
            word = self.random.choice(words)
            if is_held_out(word) == self.held_out:
                return word

    def coined(self) -> str:
        """A random made-up word, which a model can copy from the prompt but not memorize."""
        pick = self.random.choice
        while True:
            word = "".join(pick(ONSETS) + pick(VOWELS) for _ in range(self.random.randint(1, 2)))
            word += pick(ONSETS)[:1] + pick(VOWELS)[:1] + pick(CODAS)
            if is_held_out(word) == self.held_out:
                return word

    def noun(self) -> str:
        """A random noun, made-up with probability 0.25."""
        return self.coined() if self.random.random() < 0.25 else self.draw(NOUNS)

    def name(self) -> str:
        """A random first name, made-up with probability 0.25."""
        return self.coined().capitalize() if self.random.random() < 0.25 else self.draw(NAMES)

    def adjective(self) -> str:
        """A random adjective."""
        return self.draw(ADJECTIVES)

    def identifier(self) -> str:
        """A random variable name of one or two words."""
        first = self.coined() if self.random.random() < 0.2 else self.draw(PARTS)
        return first if self.random.random() < 0.5 else f"{first}_{self.draw(PARTS)}"

    def several(self, kind: str, count: int) -> list[str]:
        """`count` distinct random words of one kind: "noun", "name", "adjective" or "identifier"."""
        found: list[str] = []
        while len(found) < count:
            word: str = getattr(self, kind)()
            if word not in found:
                found.append(word)
        return found

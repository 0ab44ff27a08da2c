"""The operators of the genetic algorithm, which are the same for both encodings. Pure.

Source: Akintoye et al. 2021, algorithm 1; it prints the crossover probability, the others are choices of medweave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from medweave_steps.training.placement.fitness import Fitness

Genes = tuple[int, ...]
Member = tuple[Fitness, Genes]
"""A member of the population."""

CROSSOVER_PROBABILITY = 0.8
MUTATION_PROBABILITY = 0.2


def select(population: Sequence[Member], rng: Random) -> Genes:
    """Return the genes of the fitter of two random members (binary tournament)."""
    return max(rng.choice(population), rng.choice(population), key=lambda member: member[0])[1]


def crossover(first: Genes, second: Genes, rng: Random) -> Genes:
    """Return a child: with the crossover probability the begin of one parent and the end of the other, else the first parent."""
    if len(first) < 2 or rng.random() >= CROSSOVER_PROBABILITY:
        return first
    point = rng.randrange(1, len(first))
    return first[:point] + second[point:]


def invert(genes: Genes, rng: Random) -> Genes:
    """Return the genes, with the mutation probability with a random segment of 2 to n / 2 genes in reverse order."""
    if len(genes) < 2 or rng.random() >= MUTATION_PROBABILITY:
        return genes
    length = rng.randint(2, max(2, len(genes) // 2))
    start = rng.randint(0, len(genes) - length)
    end = start + length
    return genes[:start] + genes[start:end][::-1] + genes[end:]


def swaps(genes: Genes) -> Iterator[Genes]:
    """Yield the genes with two different ones exchanged."""
    for second in range(len(genes)):
        for first in range(second):
            if genes[first] != genes[second]:
                yield (
                    *genes[:first], genes[second], *genes[first + 1 : second], genes[first], *genes[second + 1 :],
                )  # fmt: skip


def changes(genes: Genes, num_values: int) -> Iterator[Genes]:
    """Yield the genes with one of them changed to another of the values from 0."""
    for place, gene in enumerate(genes):
        for value in range(num_values):
            if value != gene:
                yield (*genes[:place], value, *genes[place + 1 :])

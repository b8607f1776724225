"""Reads the facts of images, one after another: a program that gets each as its length and its data
on standard input, and writes a line of JSON for each to standard output.

It is a process of its own because images come from anyone: one that takes too much time or memory,
or crashes Pillow, ends only this process. `image_decoder` starts it.

Arguments: CPU seconds of one image, bytes of memory. Output: `ImageFacts`, or a problem.
"""

import sys
from typing import BinaryIO

import msgspec

from services.frontend.media.process_limits import limit_cpu, limit_process
from services.images.image_data import ImageFacts, UnreadableImage, read_facts

LENGTH_BYTES = 4


class Problem(msgspec.Struct, frozen=True, tag=True):
    """The answer for an image that cannot be used."""

    problem: str


class Facts(msgspec.Struct, frozen=True, tag=True):
    """The answer for an image that can be used."""

    facts: ImageFacts


def main(cpu_s: int, memory_bytes: int, images: BinaryIO, answers: BinaryIO) -> None:
    """Answers each image until the input ends."""
    limit_process(memory_bytes)
    while length := images.read(LENGTH_BYTES):
        data = images.read(int.from_bytes(length, "big"))
        limit_cpu(cpu_s)
        answers.write(msgspec.json.encode(answer(data)) + b"\n")
        answers.flush()


def answer(data: bytes) -> Facts | Problem:
    """Reads one image."""
    try:
        return Facts(read_facts(data))
    except UnreadableImage as error:
        return Problem(str(error))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)

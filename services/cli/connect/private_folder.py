"""Reads, writes and removes files of one folder. Only the owner can read what it writes, from the
first byte on.

The folder is open while it is used, and no link is followed in it or on the way to it: one that
another user puts there after the check of the path has no effect.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from services.cli.common import CommandError

PRIVATE = 0o600
"""The mode of a file that may contain a key."""
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


class PrivateFolder:
    """An open folder. All methods raise OSError."""

    def __init__(self, path: Path, descriptor: int, created: list[str]) -> None:
        self.path = path
        """Without links."""
        self.created = created
        """The folders that were created for it, outermost first."""
        self._descriptor = descriptor

    def read(self, name: str) -> tuple[bytes, int] | None:
        """The content and the mode of a file; None: it does not exist. Raises CommandError for a
        device."""
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._descriptor
            )
        except FileNotFoundError:
            return None
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise CommandError(f"{self.path / name} is not a regular file; it is unchanged")
        with open(descriptor, "rb") as file:
            return file.read(), stat.S_IMODE(mode)

    def create(self, name: str, data: bytes, mode: int = PRIVATE) -> None:
        """Writes a new file, which is private until it is complete and then has its mode. Raises
        FileExistsError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(name, flags, PRIVATE, dir_fd=self._descriptor), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)

    def replace(self, name: str, data: bytes, mode: int = PRIVATE) -> None:
        """Writes a file atomically: no reader sees a part of it. A link of this name is replaced,
        not followed."""
        partial = f".{name}.{os.getpid()}"
        self.remove(partial)
        self.create(partial, data, mode)
        os.rename(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)


@contextlib.contextmanager
def open_folder_of(path: Path, *, create: bool) -> Iterator[tuple[PrivateFolder, str]]:
    """Opens the folder of the file that a path and its links lead to, and returns it with the
    file's name there.

    Links stay: they may lead into a repository of dotfiles. Raises FileNotFoundError for a folder
    that does not exist, unless it is created; OSError, with the path, for a loop and for what fails
    in the folder; CommandError where links lead into a folder of another user, who would get the
    key.
    """
    try:
        try:
            real = Path(os.path.realpath(path, strict=True))
        except FileNotFoundError:
            real = Path(os.path.realpath(path))
        linked = real != Path(os.path.abspath(path))
        created: list[str] = []
        with contextlib.ExitStack() as opened:

            def step(name: str, above: int | None = None) -> int:
                descriptor = os.open(name, _FOLDER, dir_fd=above)
                opened.callback(os.close, descriptor)
                return descriptor

            folder = step(real.anchor)
            for position, name in enumerate(real.parts[1:-1], 2):
                try:
                    folder = step(name, folder)
                except FileNotFoundError:
                    if not create:
                        raise
                    _check_owner(folder, path, real, linked=linked)
                    os.mkdir(name, 0o700, dir_fd=folder)
                    created.append(str(Path(*real.parts[:position])))
                    folder = step(name, folder)
            _check_owner(folder, path, real, linked=linked)
            yield PrivateFolder(real.parent, folder, created), real.name
    except OSError as error:  # it has a part of the path only
        raise OSError(error.errno, error.strerror, str(path)) from error


def _check_owner(folder: int, path: Path, real: Path, *, linked: bool) -> None:
    if linked and os.fstat(folder).st_uid != os.getuid():
        raise CommandError(
            f"{path} is a link to {real}, in a folder of another user; it is unchanged"
        )

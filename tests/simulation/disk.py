"""A disk in memory for SQLite, which keeps what was synced and may lose what was not.

It is a VFS (https://www.sqlite.org/vfs.html) in the SQLite library that `sqlite3` uses, written with
ctypes. A file is its bytes, and beside them the bytes that have reached the disk: after a loss of power each
later write is there, missing, or torn at a sector. Shared memory and locks are those of POSIX, so that
several simulated processes use one log in WAL mode; what a killed process held is free at once, and its
handles fail.

Faults are a property of the disk: it may be full, read-only or broken.
"""

import ctypes
import random
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_void_p, memmove, memset
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

OK, BUSY, IOERR, READONLY, FULL, CANTOPEN, NOTFOUND, SHORT_READ = 0, 5, 10, 8, 13, 14, 12, 522
FSYNC_FAILED, WRITE_FAILED, READ_FAILED = IOERR | 4 << 8, IOERR | 3 << 8, IOERR | 1 << 8
NONE, SHARED, RESERVED, PENDING, EXCLUSIVE = range(5)
SHM_UNLOCK, SHM_SHARED, SHM_SLOTS = 1, 4, 8
READONLY_FLAG, CREATE_FLAG, SAFE_OVERWRITE = 1, 4, 0x1000
SECTOR = 512

JULIAN_UNIX_DAYS = 2440587.5


class Fault(StrEnum):
    """A state of the disk."""

    NONE = "none"
    FULL = "full"
    READ_ONLY = "read-only"
    BROKEN = "broken"


class _File(ctypes.Structure):
    _fields_ = (("methods", c_void_p),)


_P = c_void_p  # the place of a file, which is its name until it is closed: an int costs less than a pointer
_Method = ctypes.CFUNCTYPE
_SIGNATURES = {
    "xClose": _Method(c_int, _P),
    "xRead": _Method(c_int, _P, c_void_p, c_int, c_int64),
    "xWrite": _Method(c_int, _P, c_void_p, c_int, c_int64),
    "xTruncate": _Method(c_int, _P, c_int64),
    "xSync": _Method(c_int, _P, c_int),
    "xFileSize": _Method(c_int, _P, POINTER(c_int64)),
    "xLock": _Method(c_int, _P, c_int),
    "xUnlock": _Method(c_int, _P, c_int),
    "xCheckReservedLock": _Method(c_int, _P, POINTER(c_int)),
    "xFileControl": _Method(c_int, _P, c_int, c_void_p),
    "xSectorSize": _Method(c_int, _P),
    "xDeviceCharacteristics": _Method(c_int, _P),
    "xShmMap": _Method(c_int, _P, c_int, c_int, c_int, POINTER(c_void_p)),
    "xShmLock": _Method(c_int, _P, c_int, c_int, c_int),
    "xShmBarrier": _Method(None, _P),
    "xShmUnmap": _Method(c_int, _P, c_int),
}
_OPEN = _Method(c_int, c_void_p, c_void_p, _P, c_int, POINTER(c_int))
_DELETE = _Method(c_int, c_void_p, c_char_p, c_int)
_ACCESS = _Method(c_int, c_void_p, c_char_p, c_int, POINTER(c_int))
_FULL_PATH = _Method(c_int, c_void_p, c_char_p, c_int, c_void_p)
_RANDOMNESS = _Method(c_int, c_void_p, c_int, c_void_p)
_SLEEP = _Method(c_int, c_void_p, c_int)
_CURRENT_TIME = _Method(c_int, c_void_p, POINTER(c_double))
_LAST_ERROR = _Method(c_int, c_void_p, c_int, c_void_p)


class _Methods(ctypes.Structure):
    _fields_ = (("version", c_int), *((name, signature) for name, signature in _SIGNATURES.items()))


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("xOpen", _OPEN),
        ("xDelete", _DELETE),
        ("xAccess", _ACCESS),
        ("xFullPathname", _FULL_PATH),
        ("xDlOpen", c_void_p),
        ("xDlError", c_void_p),
        ("xDlSym", c_void_p),
        ("xDlClose", c_void_p),
        ("xRandomness", _RANDOMNESS),
        ("xSleep", _SLEEP),
        ("xCurrentTime", _CURRENT_TIME),
        ("xGetLastError", _LAST_ERROR),
    )


def _apply(data: bytearray, at: int, part: bytes | None) -> None:
    """Write bytes at an offset, or cut there."""
    if part is None:
        del data[at:]
        return
    if at > len(data):
        data.extend(bytes(at - len(data)))
    data[at : at + len(part)] = part


@dataclass(slots=True, eq=False)
class File:
    """One file.

    Attributes:
        data: What a process reads.
        durable: What has reached the disk; None while the folder does not name the file yet.
        unsynced: Writes since: an offset and bytes, or a length and None.
        locks: Level of each handle that holds one.
        regions: The shared memory beside it.
        shm: Handles that hold each slot of its locks, by whether exclusively.
    """

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray | None = None
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)
    locks: dict["Handle", int] = field(default_factory=dict)
    regions: list[Any] = field(default_factory=list)
    shm: list[dict["Handle", bool]] = field(default_factory=lambda: [{} for _ in range(SHM_SLOTS)])

    def write(self, at: int, part: bytes) -> None:
        """Write bytes, which the disk has only after `sync`."""
        _apply(self.data, at, part)
        self.unsynced.append((at, part))

    def truncate(self, size: int) -> None:
        """Cut it."""
        _apply(self.data, size, None)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        """Bring everything to the disk."""
        durable = self.durable = bytearray() if self.durable is None else self.durable
        for at, part in self.unsynced:
            _apply(durable, at, part)
        self.unsynced.clear()

    def lose_power(self, rng: random.Random) -> bool:
        """Keep what was synced, and of later writes some, some in part; return whether it is still there."""
        if self.durable is None:
            return False
        self.data = bytearray(self.durable)
        writes, self.unsynced = self.unsynced, []
        for at, part in writes:
            fate = rng.random()
            if fate < 0.4:
                continue
            if part is None:
                self.truncate(at)
            else:
                torn = rng.randrange(0, len(part), SECTOR) if fate < 0.6 else len(part)
                self.write(at, part[:torn])
        self.sync()
        self.locks, self.regions = {}, []
        self.shm = [{} for _ in range(SHM_SLOTS)]
        return True


@dataclass(slots=True, eq=False)
class Handle:
    """An open file of a process; a dead one fails, and holds no lock."""

    file: File
    owner: object
    dead: bool = False

    def release(self) -> None:
        """Drop its locks."""
        self.file.locks.pop(self, None)
        self.release_memory()

    def release_memory(self) -> None:
        """Drop its locks of shared memory."""
        for slot in self.file.shm:
            slot.pop(self, None)

    def lock(self, level: int) -> int:
        """Raise its lock on the file."""
        locks = self.file.locks
        others = [held for other, held in locks.items() if other is not self]
        if level == SHARED and any(held >= PENDING for held in others):
            return BUSY
        if level >= RESERVED and any(held >= RESERVED for held in others):
            return BUSY
        if level == EXCLUSIVE and others:
            locks[self] = PENDING
            return BUSY
        locks[self] = max(level, locks.get(self, NONE))
        return OK

    def unlock(self, level: int) -> int:
        """Lower its lock on the file."""
        locks = self.file.locks
        if level == NONE:
            locks.pop(self, None)
        elif self in locks:
            locks[self] = level
        return OK

    def lock_memory(self, first: int, n: int, flags: int) -> int:
        """Take or drop locks of shared memory."""
        slots = self.file.shm[first : first + n]
        if flags & SHM_UNLOCK:
            for slot in slots:
                slot.pop(self, None)
            return OK
        exclusive = not flags & SHM_SHARED
        for slot in slots:
            if slot and any(exclusive or held for other, held in slot.items() if other is not self):
                return BUSY
        for slot in slots:
            slot[self] = exclusive
        return OK


GONE = Handle(File(), None, dead=True)


@dataclass(slots=True)
class Disk:
    """The files, and who has them open.

    Args:
        rng: Draws what a loss of power leaves, and the random bytes that SQLite asks for.
        owner: Returns the process that runs now.
        clock: Returns seconds since the epoch.

    Attributes:
        handles: What is open, by the place where SQLite has it.
        fault: What is wrong with it now.
    """

    rng: random.Random
    owner: Callable[[], object] = lambda: None
    clock: Callable[[], float] = lambda: 0.0
    files: dict[str, File] = field(default_factory=dict)
    handles: dict[int, Handle] = field(default_factory=dict)
    fault: Fault = Fault.NONE

    def open(self, path: str | None, *, create: bool) -> Handle | None:
        """Open a file; None: it is not there."""
        file = File() if path is None else self.files.get(path)
        if file is None:
            if not create or self.fault is not Fault.NONE:
                return None
            assert path is not None
            file = self.files[path] = File()
        return Handle(file, self.owner())

    def kill(self, owner: object) -> None:
        """End all handles of a process, as its kernel would."""
        for handle in self.handles.values():
            if handle.owner is owner and not handle.dead:
                handle.dead = True
                handle.release()

    def lose_power(self) -> None:
        """Lose what was not synced. Every process must have been killed."""
        for path, file in [*self.files.items()]:
            if not file.lose_power(self.rng):
                del self.files[path]

    def contains(self, text: bytes) -> list[str]:
        """Return the files that hold some bytes."""
        return [path for path, file in self.files.items() if text in file.data]


KEPT: deque[Any] = deque(maxlen=500)
"""Shared memory, longer than a connection of a dead process may read it before it is closed."""


class _Driver:
    """What SQLite calls: finds the disk in use, and keeps errors of ours from being swallowed."""

    def __init__(self) -> None:
        self.disk: Disk | None = None
        self.error: BaseException | None = None

    def handle(self, file: int) -> Handle:
        """Return the handle of a file; one of an earlier disk is dead."""
        assert self.disk is not None
        return self.disk.handles.get(file, GONE)

    def x_close(self, file: int) -> int:
        if self.disk is not None and (handle := self.disk.handles.pop(file, None)):
            handle.release()
        return OK

    def x_read(self, file: int, into: int, n: int, at: int) -> int:
        handle = self.handle(file)
        if handle.dead:
            return READ_FAILED
        part = bytes(handle.file.data[at : at + n])
        memmove(into, part, len(part))
        if len(part) < n:
            memset(into + len(part), 0, n - len(part))
            return SHORT_READ
        return OK

    def x_write(self, file: int, source: int, n: int, at: int) -> int:
        handle = self.handle(file)
        if error := self._failed(handle, WRITE_FAILED):
            return error
        handle.file.write(at, ctypes.string_at(source, n))
        return OK

    def _failed(self, handle: Handle, broken: int) -> int:
        assert self.disk is not None
        if handle.dead:
            return broken
        match self.disk.fault:
            case Fault.FULL:
                return FULL
            case Fault.READ_ONLY:
                return READONLY
            case Fault.BROKEN:
                return broken
        return OK

    def x_truncate(self, file: int, size: int) -> int:
        handle = self.handle(file)
        if error := self._failed(handle, WRITE_FAILED):
            return error
        handle.file.truncate(size)
        return OK

    def x_sync(self, file: int, _flags: int) -> int:
        handle = self.handle(file)
        if error := self._failed(handle, FSYNC_FAILED):
            return FSYNC_FAILED if error == FULL else error
        handle.file.sync()
        return OK

    def x_file_size(self, file: int, size: Any) -> int:
        handle = self.handle(file)
        size[0] = len(handle.file.data)
        return OK

    def x_lock(self, file: int, level: int) -> int:
        handle = self.handle(file)
        return IOERR if handle.dead else handle.lock(level)

    def x_unlock(self, file: int, level: int) -> int:
        handle = self.handle(file)
        return OK if handle.dead else handle.unlock(level)

    def x_check_reserved_lock(self, file: int, held: Any) -> int:
        handle = self.handle(file)
        held[0] = int(any(level >= RESERVED for level in handle.file.locks.values()))
        return OK

    def x_file_control(self, _file: int, _what: int, _value: Any) -> int:
        return NOTFOUND

    def x_sector_size(self, _file: int) -> int:
        return SECTOR

    def x_device_characteristics(self, _file: int) -> int:
        return SAFE_OVERWRITE

    def x_shm_map(self, file: int, region: int, size: int, extend: int, at: Any) -> int:
        handle = self.handle(file)
        if handle.dead:
            return IOERR
        regions = handle.file.regions
        while extend and len(regions) <= region:
            regions.append(ctypes.create_string_buffer(size))
            KEPT.append(regions[-1])
        at[0] = ctypes.addressof(regions[region]) if region < len(regions) else None
        return OK

    def x_shm_lock(self, file: int, first: int, n: int, flags: int) -> int:
        handle = self.handle(file)
        if handle.dead:
            return OK if flags & SHM_UNLOCK else IOERR
        return handle.lock_memory(first, n, flags)

    def x_shm_barrier(self, _file: int) -> None:
        """Do nothing; `install` puts a function in its place that costs nothing either."""

    def x_shm_unmap(self, file: int, delete: int) -> int:
        handle = self.handle(file)
        handle.release_memory()
        if delete and not handle.dead:
            handle.file.regions = []
        return OK

    def x_open(self, _vfs: Any, name: int | None, file: int, flags: int, out: Any) -> int:
        assert self.disk is not None
        path = None if name is None else ctypes.string_at(name).decode()
        handle = self.disk.open(path, create=bool(flags & CREATE_FLAG) or path is None)
        opened = _File.from_address(file)
        opened.methods = None
        if handle is None:
            return CANTOPEN
        opened.methods, self.disk.handles[file] = ctypes.addressof(METHODS), handle
        if out:
            out[0] = flags
        return OK

    def x_delete(self, _vfs: Any, path: bytes, _sync: int) -> int:
        assert self.disk is not None
        if self.disk.fault is not Fault.NONE:
            return IOERR
        self.disk.files.pop(path.decode(), None)
        return OK

    def x_access(self, _vfs: Any, path: bytes, _flags: int, found: Any) -> int:
        assert self.disk is not None
        found[0] = int(path.decode() in self.disk.files)
        return OK

    def x_full_pathname(self, _vfs: Any, path: bytes, n: int, out: int) -> int:
        if len(path) + 1 > n:
            return CANTOPEN
        memmove(out, path + b"\0", len(path) + 1)
        return OK

    def x_randomness(self, _vfs: Any, n: int, out: int) -> int:
        assert self.disk is not None
        memmove(out, self.disk.rng.randbytes(n), n)
        return n

    def x_sleep(self, _vfs: Any, microseconds: int) -> int:
        raise AssertionError(f"SQLite waits {microseconds} us: only the scheduler lets time pass")

    def x_current_time(self, _vfs: Any, days: Any) -> int:
        assert self.disk is not None
        days[0] = JULIAN_UNIX_DAYS + self.disk.clock() / 86_400.0
        return OK

    def x_get_last_error(self, _vfs: Any, _n: int, _out: Any) -> int:
        return OK


DRIVER = _Driver()


def _guarded(do: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a callback whose exception is an error of the disk, kept to be raised by the simulation."""

    def call(*arguments: Any) -> int | None:
        try:
            return do(*arguments)
        except BaseException as error:  # noqa: BLE001 - ctypes would print it and go on
            DRIVER.error = DRIVER.error or error
            return IOERR

    return call


def _snake(name: str) -> str:
    return "x" + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name[1:])


METHODS = _Methods(
    2,
    *(signature(_guarded(getattr(DRIVER, _snake(name)))) for name, signature in _SIGNATURES.items()),
)
VFS = _Vfs(
    1,
    ctypes.sizeof(_File),
    512,
    None,
    b"simulated",
    None,
    _OPEN(_guarded(DRIVER.x_open)),
    _DELETE(_guarded(DRIVER.x_delete)),
    _ACCESS(_guarded(DRIVER.x_access)),
    _FULL_PATH(_guarded(DRIVER.x_full_pathname)),
    None,
    None,
    None,
    None,
    _RANDOMNESS(_guarded(DRIVER.x_randomness)),
    _SLEEP(_guarded(DRIVER.x_sleep)),
    _CURRENT_TIME(_guarded(DRIVER.x_current_time)),
    _LAST_ERROR(_guarded(DRIVER.x_get_last_error)),
)


class NoLibraryError(Exception):
    """The SQLite library of this Python cannot be called by ctypes."""


def install(*, default: bool) -> None:
    """Give the SQLite of this process a VFS `simulated`, as its default one or beside it.

    Raises:
        NoLibraryError: The library cannot be called.
    """
    import _sqlite3

    try:
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        METHODS.xShmBarrier = ctypes.cast(library.sqlite3_libversion_number, _SIGNATURES["xShmBarrier"])
        code = library.sqlite3_vfs_register(byref(VFS), int(default))
    except (AttributeError, OSError) as error:
        raise NoLibraryError(f"the SQLite library of this Python cannot be called: {error}") from None
    if code != OK:
        raise NoLibraryError(f"the SQLite library of this Python refused a VFS: {code}")

"""What a local disk is asked on any POSIX system."""

import errno
import os
import runpy
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import statebackend
from statebackend._local.disk import check_ours, is_failing, is_ours, make_directory
from statebackend.errors import LocalRootError

POSIX = (
    "E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBADMSG EBUSY ECANCELED ECHILD "
    "ECONNABORTED ECONNREFUSED ECONNRESET EDEADLK EDESTADDRREQ EDOM EDQUOT EEXIST EFAULT EFBIG EHOSTUNREACH EIDRM "
    "EILSEQ EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR ELOOP EMFILE EMLINK EMSGSIZE EMULTIHOP ENAMETOOLONG ENETDOWN "
    "ENETRESET ENETUNREACH ENFILE ENOBUFS ENODEV ENOENT ENOEXEC ENOLCK ENOLINK ENOMEM ENOMSG ENOPROTOOPT ENOSPC ENOSYS "
    "ENOTCONN ENOTDIR ENOTEMPTY ENOTSOCK ENOTSUP ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPIPE EPROTO EPROTONOSUPPORT "
    "EPROTOTYPE ERANGE EROFS ESPIPE ESRCH ESTALE ETIMEDOUT ETXTBSY EWOULDBLOCK EXDEV"
)
"""The errors that POSIX.1-2017 has; Linux has many more, and Darwin others."""


def test_every_module_runs_with_the_errors_of_posix_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that only Linux has must not keep `import statebackend` from working on macOS."""
    for name in errno.errorcode.values():
        if name not in POSIX.split():
            monkeypatch.delattr(errno, name)
    package = Path(statebackend.__file__).parent
    modules = [path for path in package.rglob("*.py") if "errno." in path.read_text(encoding="utf-8")]
    assert modules
    for path in modules:
        runpy.run_path(str(path))


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o750, 0o720, 0o702, 0o770, 0o707, 0o777])
def test_a_directory_that_anybody_else_can_write_to_is_not_ours(tmp_path: Path, mode: int) -> None:
    """Neither the group nor the others; what they can read does not matter. Nor is a link or a file ours."""
    directory, link, file = tmp_path / "directory", tmp_path / "link", tmp_path / "file"
    directory.mkdir()
    directory.chmod(mode)
    link.symlink_to(directory)
    file.touch(mode=0o600)
    assert is_ours(directory) == (not mode & 0o022)
    if mode & 0o022:
        with pytest.raises(LocalRootError, match="do this instead") as raised:
            check_ours(directory, "do this instead")
        assert raised.value.facts["mode"] == oct(mode)
    else:
        check_ours(directory, "do this instead")
    assert (is_ours(link), is_ours(file), is_ours(tmp_path / "none")) == (False, False, False)
    with pytest.raises(LocalRootError, match="do this instead") as raised:
        check_ours(link, "do this instead")
    assert raised.value.facts["is_link"] is True


@pytest.fixture
def without_umask() -> Iterator[None]:
    """A process whose files anybody may write to, unless it says something else."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("without_umask")
def test_directories_are_made_for_us_alone(tmp_path: Path) -> None:
    """Those above as well; one that is there stays as it is."""
    (tmp_path / "there").mkdir(mode=0o755)
    make_directory(tmp_path / "there" / "a" / "b")
    make_directory(tmp_path / "there" / "a" / "b")
    modes = [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("there", "there/a", "there/a/b")]
    assert modes == [0o755, 0o700, 0o700]


FAILING = ("EROFS", "ENOSPC", "EDQUOT", "EIO", "ENXIO", "ENODEV", "ESTALE", "ENOTCONN")
WRONG = ("ENOENT", "EACCES", "EPERM", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "EINVAL", "EMFILE")


@pytest.mark.parametrize("name", [*FAILING, *WRONG])
def test_a_disk_that_fails_is_told_from_a_path_that_is_wrong(name: str) -> None:
    """A job goes on without such a disk, and says so; what is wrong is the user's to mend. A quota is a full disk."""
    error = OSError(getattr(errno, name), name)
    ours = LocalRootError("a local root cannot be used")
    ours.__cause__ = error
    assert [is_failing(each) for each in (error, ours)] == [name in FAILING] * 2
    assert not any(map(is_failing, (None, ValueError(name), LocalRootError("of no error"))))

"""What a local disk is asked on any POSIX system."""

import errno
import runpy
from pathlib import Path

import pytest

import statebackend

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

"""The object store from which pods get code that is too large for a ConfigMap: written once by its digest, read by URL.

fsspec and the package of the protocol are imported only here, and only if they are needed.
"""

from typing import Any

from torchyard.code.archive import keep_archive
from torchyard.common.packages import need
from torchyard.common.secrets import mask_text, remember_values
from torchyard.model.errors import CodeError, MissingPackageError
from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.plan import StagedCode

_URL_LIFETIME_S = 7 * 86400  # the longest that S3 and Google Cloud Storage allow; a job may wait in a queue
_S3_PROTOCOLS = ("s3", "s3a")
_SIGN_REMEDY = "use a store that signs URLs, such as s3://, gs:// or az://, or exclude files (code.exclude)"
_STORE_REMEDY = "correct code.store, or its credentials in the environment of this process"


def publish_archive(code: StagedCode) -> str:
    """Write a run's archive to its store, unless it is there, and return a signed URL of it. CodeError.

    The URL is a secret: from now on it is masked in all that this process prints.
    """
    url = _get_url(code)
    files = _open_file_system(url)
    keep_archive(code)
    try:
        if _find_size(files, url) != code.archive.packed_bytes:
            files.put_file(code.path, url)
    except Exception as error:  # each protocol has its own errors
        raise CodeError(mask_text(url), f"it cannot be written: {_describe_error(error)}", _STORE_REMEDY) from error
    return _sign_url(files, url)


def check_store(code: StagedCode) -> Finding:
    """A check that the store can be read, and signs URLs."""
    url = _get_url(code)
    try:
        files = _open_file_system(url)
        _find_size(files, url)
        _sign_url(files, url)
    except CodeError as error:
        return failed_check("code.store", f"{error.location}: {error.reason}", error.remedy)
    except Exception as error:  # each protocol has its own errors
        return failed_check("code.store", f"{mask_text(url)} cannot be read: {_describe_error(error)}", _STORE_REMEDY)
    return passed_check("code.store", f"{mask_text(url)} can be read, and its URL can be signed")


def _get_url(code: StagedCode) -> str:
    assert code.url
    return code.url


def _open_file_system(url: str) -> Any:
    """The file system of fsspec for the URL. CodeError if its protocol is unknown, or a package is missing."""
    protocol = url.partition("://")[0]
    try:
        need(f"code.store at {protocol}://", "fsspec", protocol=protocol)
    except MissingPackageError as error:
        raise CodeError(mask_text(url), error.problem, error.remedy) from error
    from fsspec.core import url_to_fs

    try:
        file_system, _ = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
        raise CodeError(mask_text(url), _describe_error(error), _STORE_REMEDY) from error
    if protocol in _S3_PROTOCOLS:
        # In some regions botocore signs URLs by version 2, which newer buckets and objects encrypted with KMS refuse.
        file_system.config_kwargs.setdefault("signature_version", "s3v4")
    return file_system


def _find_size(files: Any, url: str) -> int | None:
    """The size in bytes of the object at a URL; None if there is none. The errors of the protocol."""
    try:
        return int(files.info(url)["size"])
    except FileNotFoundError:
        return None


def _sign_url(files: Any, url: str) -> str:
    """A URL with which everyone can read the object. CodeError if the store has none."""
    try:
        signed_url = str(files.sign(url, expiration=_URL_LIFETIME_S))
    except NotImplementedError as error:
        reason = "it has no signed URLs, with which the pods download the code"
        raise CodeError(mask_text(url), reason, _SIGN_REMEDY) from error
    except Exception as error:  # each protocol has its own errors
        raise CodeError(mask_text(url), f"no URL can be signed: {_describe_error(error)}", _SIGN_REMEDY) from error
    remember_values([signed_url])
    return signed_url


def _describe_error(error: BaseException) -> str:
    """An error in one line; by the name of its class if it has no message."""
    return mask_text(" ".join(str(error).split())[:500]) or type(error).__name__

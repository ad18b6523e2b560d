"""`joblib_install`: register mp_all with joblib, which is imported only then."""

from __future__ import annotations


def joblib_install(make_default: bool = True) -> None:
    """
    Let joblib, and so scikit-learn, run its processes on mp_all.

    joblib then knows the backend ``"mp_all"``: ``joblib.parallel_config("mp_all")`` selects it. Its workers stay for
    the next call. Large arrays are in memory once for all tasks; a task may write to its arguments, and the others do
    not see that. Results come back through shared memory. When a worker is killed, only its task fails.

    Parameters
    ----------
    make_default : bool, optional
        Whether joblib takes it where a program names no backend, in the place of loky.

    Raises
    ------
    ImportError
        joblib is missing or older than 1.5; the message says how to install it.

    Examples
    --------
    >>> mp.joblib_install()  # doctest: +SKIP
    >>> joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(number) for number in (-1, 2))  # doctest: +SKIP
    [1, 2]
    """
    try:
        from mp_all._integrations import joblib_backend
    except ImportError as error:
        raise ImportError(
            f"joblib_install needs joblib 1.5 or newer ({error}): pip install 'mp-all[joblib]'"
        ) from error
    joblib_backend.register(make_default)

"""A converted model on the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

from da3po.config.schema import ConfigError
from da3po.conversion.report import JSON, MARKDOWN

TOKEN = "HF_TOKEN"


class PushError(RuntimeError):
    """The Hub did not take the model; the message says why."""


def check_push() -> str:
    """The token, which comes from the environment and is written nowhere. Raises ConfigError if there is none."""
    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(f"--push needs an access token of the Hugging Face Hub in the environment variable {TOKEN}")
    return token


def push(folder: Path, repository: str, token: str) -> str:
    """Upload a model directory to `owner/name`, made as a private one if it is not there. Returns its address.

    The reports of the conversion stay here: they name paths of this machine.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(token=token)
    try:
        address = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=[JSON, MARKDOWN])
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise PushError(f"{folder} is converted, but {repository} was not uploaded: {reason[0]}") from error
    return str(address)

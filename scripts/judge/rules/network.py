"""Nothing comes from the network: no packages, no weights, no other host that does the work."""

from __future__ import annotations

from scripts.judge.change import Change, Hit

NAME = "network"
WHY = "K34, J15, J42: another machine's work is not the job's"

MODULES = ("socket", "ssl", "urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "smtplib",
           "telnetlib", "xmlrpc", "socketserver", "urllib3", "websocket", "websockets", "paramiko",
           "grpc", "zmq", "boto3", "fsspec", "smart_open", "torch.hub", "wget", "gdown",
           "huggingface_hub", "selectors", "imaplib", "poplib", "nntplib", "redis", "pymongo",
           "torch.distributed.rpc", "torch.distributed.TCPStore", "openai", "anthropic", "litellm",
           "wandb", "multiprocessing.connection")  # fmt: skip


def check(change: Change) -> list[Hit]:
    return change.refuse_references("{name} opens the network", *MODULES)

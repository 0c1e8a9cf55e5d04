"""What may protocols and tools use of the server?

A name is loaded when it is first used, so that a process pays only for what it uses.
"""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.server.asgi import AsgiApp as AsgiApp
    from wherry.server.asgi import Receive as Receive
    from wherry.server.asgi import Scope as Scope
    from wherry.server.asgi import Send as Send
    from wherry.server.asgi import asgi as asgi
    from wherry.server.calls.admission import SMALL_BODY as SMALL_BODY
    from wherry.server.calls.call import InferCall as InferCall
    from wherry.server.calls.call import RequestValues as RequestValues
    from wherry.server.calls.offload import LARGE_BYTES as LARGE_BYTES
    from wherry.server.calls.offload import give_way as give_way
    from wherry.server.calls.terms import new_request_id as new_request_id
    from wherry.server.cli import main as main
    from wherry.server.cli.call import client_of as client_of
    from wherry.server.cli.settings import read_settings as read_settings
    from wherry.server.cli.show import print_line as print_line
    from wherry.server.cli.show import printable as printable
    from wherry.server.content.media_types import FORM as FORM
    from wherry.server.content.multipart import NamedValue as NamedValue
    from wherry.server.content.multipart import named_values as named_values
    from wherry.server.dashboard.routes import whole_page as whole_page
    from wherry.server.grpc.proto import Schema as Schema
    from wherry.server.grpc.proto import load as load
    from wherry.server.http.answers import EventStream as EventStream
    from wherry.server.http.answers import describe as describe
    from wherry.server.http.answers import request_id_of as request_id_of
    from wherry.server.http.answers import respond as respond
    from wherry.server.http.exchange import JSON as JSON
    from wherry.server.http.exchange import Exchange as Exchange
    from wherry.server.http.exchange import Headers as Headers
    from wherry.server.http.exchange import HttpRequest as HttpRequest
    from wherry.server.http.route import ANY_TEXT as ANY_TEXT
    from wherry.server.http.route import EVENTS as EVENTS
    from wherry.server.http.route import FILE as FILE
    from wherry.server.http.route import OF_INFERENCE as OF_INFERENCE
    from wherry.server.http.route import READS as READS
    from wherry.server.http.route import STREAMED as STREAMED
    from wherry.server.http.route import TEXT as TEXT
    from wherry.server.http.route import Operation as Operation
    from wherry.server.http.route import Route as Route
    from wherry.server.http.route import generation as generation
    from wherry.server.http.route import inference as inference
    from wherry.server.http.route import json_of as json_of
    from wherry.server.http.route import list_of as list_of
    from wherry.server.http.route import object_of as object_of
    from wherry.server.http.route import returns as returns
    from wherry.server.keywords import ServerKeywords as ServerKeywords
    from wherry.server.options import OPTIONS as OPTIONS
    from wherry.server.options import PREFIX as PREFIX
    from wherry.server.protocol import PROTOCOLS as PROTOCOLS
    from wherry.server.protocol import HttpProtocol as HttpProtocol
    from wherry.server.server import Server as Server
    from wherry.server.targets import load_targets as load_targets
    from wherry.server.v2.describe import model_config as model_config
    from wherry.server.v2.describe import statistics as statistics
    from wherry.server.v2.http.entry import HeadNotes as HeadNotes
    from wherry.server.v2.http.entry import HttpEntry as HttpEntry
    from wherry.server.v2.long_arrays import check_values as check_values
    from wherry.server.v2.output_codec import is_large as is_large
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "asgi": "AsgiApp Receive Scope Send asgi",
            "calls.admission": "SMALL_BODY",
            "calls.call": "RequestValues InferCall",
            "calls.offload": "LARGE_BYTES give_way",
            "calls.terms": "new_request_id",
            "cli": "main",
            "cli.call": "client_of",
            "cli.settings": "read_settings",
            "cli.show": "print_line printable",
            "content.media_types": "FORM",
            "content.multipart": "NamedValue named_values",
            "dashboard.routes": "whole_page",
            "grpc.proto": "Schema load",
            "http.answers": "EventStream describe request_id_of respond",
            "http.exchange": "Exchange Headers HttpRequest JSON",
            "http.route": (
                "ANY_TEXT EVENTS FILE OF_INFERENCE Operation READS Route STREAMED TEXT "
                "generation inference json_of list_of object_of returns"
            ),
            "keywords": "ServerKeywords",
            "options": "OPTIONS PREFIX",
            "protocol": "HttpProtocol PROTOCOLS",
            "server": "Server",
            "targets": "load_targets",
            "v2.describe": "model_config statistics",
            "v2.http.entry": "HeadNotes HttpEntry",
            "v2.long_arrays": "check_values",
            "v2.output_codec": "is_large",
        },
    )

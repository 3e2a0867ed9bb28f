"""Google Cloud Storage's XML API in front of a server that speaks only its JSON API (fake-gcs-server).

Objects, generations, conditions, lists and copies are the server's; only the words are changed::

    GET /BUCKET?list-type=2            GET  /storage/v1/b/BUCKET/o
    GET, HEAD /BUCKET/KEY              GET  /storage/v1/b/BUCKET/o/KEY?alt=media
      If-Match: "MD5"                    … and generation=G, that of the object with this MD5
    PUT /BUCKET/KEY                    POST /upload/storage/v1/b/BUCKET/o?uploadType=multipart
      x-goog-if-generation-match: G      … and ifGenerationMatch=G
      x-goog-copy-source: BUCKET/KEY   POST /storage/v1/b/BUCKET/o/KEY/rewriteTo/b/BUCKET/o/KEY
    DELETE /BUCKET/KEY                 DELETE /storage/v1/b/BUCKET/o/KEY
    POST ?uploads, PUT ?partNumber,    kept here; put as one object when it is complete
      POST, DELETE ?uploadId

What has no row here is answered with 501, so no condition is passed over. Tokens are checked as Google does
it with those that a service account's key has signed. It is a process of its own, since deltalake keeps all
threads of its process waiting for a store: ``python -m tests.support.objects.google URL PORT PUBLIC_KEY``.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import http.client
import itertools
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

PAGE_KEYS = 1_000
LEAST_PART_BYTES = 5 << 20
_KNOWN_HEADERS = ("x-goog-if-generation-match", "x-goog-copy-source")
_CODES = {
    401: "AuthenticationRequired",
    404: "NoSuchKey",
    412: "PreconditionFailed",
    416: "InvalidRange",
    501: "NotImplemented",
}


@cache
def _key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def service_account(name: str) -> str:
    """The key of a service account, as the file of it that Google gives."""
    pem = _key(name).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fields = {"private_key": pem.decode(), "private_key_id": name, "client_email": f"{name}@example.com"}
    return json.dumps({"type": "service_account", **fields})


def public_key(name: str) -> str:
    """The key with which the account's tokens are checked, in PEM."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return _key(name).public_key().public_bytes(serialization.Encoding.PEM, form).decode()


class _Answer(NamedTuple):
    status: int
    data: bytes = b""
    headers: Mapping[str, str] = {}


class _Refused(Exception):
    """Answered with this status and code."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status)
        self.status, self.code = status, code or _CODES.get(status, "InternalError")


class GoogleFront(ThreadingHTTPServer):
    """Speaks the XML API on a port, for the server of ``url``; ``key``: of the tokens that it accepts."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, url: str, port: int, key: str) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.server = urlsplit(url).netloc
        self._key = serialization.load_pem_public_key(key.encode())
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._numbers, self._accepted = itertools.count(), set[str]()

    def begin_upload(self) -> str:
        """The id of an upload in parts."""
        upload_id = f"upload-{next(self._numbers)}"
        self.uploads[upload_id] = {}
        return upload_id

    def accepts(self, authorization: str) -> bool:
        """Is it a token that the account's key has signed?"""
        if authorization in self._accepted:
            return True
        signed, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
        assert isinstance(self._key, rsa.RSAPublicKey)
        try:
            self._key.verify(
                base64.urlsafe_b64decode(signature + "=="),
                signed.encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except (InvalidSignature, ValueError):
            return False
        self._accepted.add(authorization)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what the tests want."""


def _etag(md5: str) -> str:
    return f'"{base64.b64decode(md5).hex()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    server: GoogleFront
    _connection: http.client.HTTPConnection | None = None

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            answer = self._answer(body)
        except _Refused as refused:
            text = f"<?xml version='1.0'?><Error><Code>{refused.code}</Code></Error>"
            answer = _Answer(refused.status, text.encode(), {"Content-Type": "application/xml"})
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _respond

    def _answer(self, body: bytes) -> _Answer:
        if not self.server.accepts(self.headers.get("authorization", "")):
            raise _Refused(401)
        unknown = [name for name in self.headers if name.lower().startswith(("x-goog-", "if-"))]
        if {name.lower() for name in unknown} - {*_KNOWN_HEADERS, "if-match"}:
            raise _Refused(501)
        parts = urlsplit(self.path)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        bucket, key = unquote(bucket), unquote(key)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        match self.command, sorted(query):
            case "GET", _ if not key:
                return self._list(bucket, query)
            case (("GET" | "HEAD"), []):
                return self._get(bucket, key)
            case "PUT", [] if "x-goog-copy-source" in self.headers:
                return self._copy(bucket, key)
            case "PUT", []:
                return self._put(bucket, key, body)
            case "DELETE", []:
                self._request_google("DELETE", f"{_path(bucket)}/{quote(key, safe='')}", bucket)
                return _Answer(204)
            case _ if query.keys() & {"uploads", "uploadId"}:
                return self._part(bucket, key, query, body)
        raise _Refused(501)

    def _request_google(
        self,
        method: str,
        path: str,
        bucket: str,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, http.client.HTTPResponse]:
        """The server's answer. Raises _Refused."""
        self._connection = self._connection or http.client.HTTPConnection(self.server.server)
        target = f"{path}?{urlencode(query)}" if query else path
        self._connection.request(method, target, body, dict(headers or {}))
        response = self._connection.getresponse()
        data = response.read()
        if response.status == 404 and path != _path(bucket):
            self._request_google("GET", _path(bucket), bucket, {"maxResults": "1"})
        if response.status >= 300:
            raise _Refused(response.status, "NoSuchBucket" if path == _path(bucket) else "")
        return data, response

    def _facts(self, bucket: str, key: str) -> Any:
        return json.loads(self._request_google("GET", f"{_path(bucket)}/{quote(key, safe='')}", bucket)[0])

    def _list(self, bucket: str, query: Mapping[str, str]) -> _Answer:
        names = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
        if query.keys() - {*names, "list-type", "max-keys", "start-after"}:
            raise _Refused(501)
        parameters = {names[name]: value for name, value in query.items() if name in names}
        if "start-after" in query:
            parameters["startOffset"] = query["start-after"] + "\0"  # which is inclusive
        parameters["maxResults"] = str(min(int(query.get("max-keys", PAGE_KEYS)), PAGE_KEYS))
        page = json.loads(self._request_google("GET", _path(bucket), bucket, parameters)[0])
        rows = [
            f"<Contents><Key>{escape(row['name'])}</Key><Generation>{row['generation']}</Generation>"
            f"<LastModified>{row['updated']}</LastModified><ETag>{escape(_etag(row['md5Hash']))}</ETag>"
            f"<Size>{row['size']}</Size></Contents>"
            for row in page.get("items", [])
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in page.get("prefixes", [])
        ]
        token = page.get("nextPageToken")
        rows.append(f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>")
        if token:
            rows.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        return _Answer(200, f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())

    def _get(self, bucket: str, key: str) -> _Answer:
        """The object of the ETag that is asked for, or of the moment: its facts and bytes are of one
        generation."""
        facts = self._facts(bucket, key)
        etag, if_match = _etag(facts["md5Hash"]), self.headers.get("if-match")
        if if_match not in (None, etag):
            raise _Refused(412)
        parameters = {"alt": "media", "generation": str(facts["generation"])}
        ranges = {"Range": self.headers["range"]} if "range" in self.headers else {}
        try:
            data, response = self._request_google(
                "GET", f"{_path(bucket)}/{quote(key, safe='')}", bucket, parameters, headers=ranges
            )
        except _Refused as refused:
            if refused.status != 404:
                raise
            if if_match is None:
                return self._get(bucket, key)
            raise _Refused(412) from None  # it was replaced between the two
        modified = datetime.fromisoformat(facts["updated"])
        headers = {
            "ETag": etag,
            "Last-Modified": email.utils.format_datetime(modified, usegmt=True),
            "x-goog-generation": str(facts["generation"]),
            "Content-Length": str(len(data)),
        }
        if response.headers.get("Content-Range"):
            headers["Content-Range"] = response.headers["Content-Range"]
        return _Answer(response.status, data, headers)

    def _put(self, bucket: str, key: str, body: bytes) -> _Answer:
        parameters = {"uploadType": "multipart"}  # uploadType=media passes over the condition
        if "x-goog-if-generation-match" in self.headers:
            parameters["ifGenerationMatch"] = self.headers["x-goog-if-generation-match"]
        boundary = uuid.uuid4().hex
        head = "--{}\r\nContent-Type: application/json\r\n\r\n{}\r\n--{}\r\nContent-Type: {}\r\n\r\n".format(
            boundary, json.dumps({"name": key}), boundary, "application/octet-stream"
        )
        sent = b"".join((head.encode(), body, f"\r\n--{boundary}--\r\n".encode()))
        kind = {"Content-Type": f"multipart/related; boundary={boundary}"}
        uploaded = json.loads(
            self._request_google("POST", f"/upload{_path(bucket)}", bucket, parameters, sent, kind)[0]
        )
        headers = {"ETag": _etag(uploaded["md5Hash"]), "x-goog-generation": str(uploaded["generation"])}
        return _Answer(200, b"", headers)

    def _copy(self, bucket: str, key: str) -> _Answer:
        if "x-goog-if-generation-match" in self.headers:
            raise _Refused(501)  # the server would pass over it
        source, _, name = self.headers["x-goog-copy-source"].partition("/")
        source = unquote(source)
        path = f"{_path(source)}/{quote(unquote(name), safe='')}/rewriteTo/b/{quote(bucket, safe='')}/o/"
        copied = json.loads(self._request_google("POST", path + quote(key, safe=""), source)[0])
        assert copied["done"], copied
        return _Answer(200, b"<CopyObjectResult></CopyObjectResult>")

    def _part(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> _Answer:
        uploads = self.server.uploads
        if self.command == "POST" and "uploads" in query:
            self._request_google("GET", _path(bucket), bucket, {"maxResults": "1"})
            name = self.server.begin_upload()
            text = (
                f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
            return _Answer(200, text.encode())
        if (upload := uploads.get(query.get("uploadId", ""))) is None:
            raise _Refused(404, "NoSuchUpload")
        if self.command == "PUT":
            upload[int(query["partNumber"])] = body
            return _Answer(200, b"", {"ETag": _part_etag(body)})
        if self.command == "DELETE":
            del uploads[query["uploadId"]]
            return _Answer(204)
        rows = [(int(row[0].text or 0), row[1].text) for row in _parts(body)]
        if [(number, _part_etag(upload[number])) for number, _ in rows] != rows:
            raise _Refused(400, "InvalidPart")
        pieces = [upload[number] for number, _ in rows]
        if any(len(piece) < LEAST_PART_BYTES for piece in pieces[:-1]):
            raise _Refused(400, "EntityTooSmall")
        answer = self._put(bucket, key, b"".join(pieces))
        del uploads[query["uploadId"]]
        # Google's is not the MD5 of the whole either.
        text = f"<ETag>&quot;{hashlib.md5(body).hexdigest()}-{len(rows)}&quot;</ETag>"
        text = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
        return _Answer(200, text.encode(), {"x-goog-generation": answer.headers["x-goog-generation"]})

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


def _path(bucket: str) -> str:
    return f"/storage/v1/b/{quote(bucket, safe='')}/o"


def _part_etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _parts(body: bytes) -> Iterator[tuple[ElementTree.Element, ElementTree.Element]]:
    """(number, ETag) of each part of a complete upload."""
    for part in ElementTree.fromstring(body):
        by_name = {child.tag.rpartition("}")[2]: child for child in part}
        yield by_name["PartNumber"], by_name["ETag"]


if __name__ == "__main__":
    GoogleFront(sys.argv[1], int(sys.argv[2]), sys.argv[3]).serve_forever()

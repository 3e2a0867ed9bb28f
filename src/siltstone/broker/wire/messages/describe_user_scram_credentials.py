"""Requests and responses of DescribeUserScramCredentials.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class UserName(Message, frozen=True):
    """The type of ``users`` in DescribeUserScramCredentialsRequest."""

    name: Annotated[str, Field("string", 0)] = ""


class DescribeUserScramCredentialsRequest(Message, frozen=True):
    """The request in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    users: Annotated[tuple[UserName, ...] | None, Field("struct", 0, nullable=0, is_array=True)] = ()


class CredentialInfo(Message, frozen=True):
    """The type of ``credentialInfos`` in DescribeUserScramCredentialsResult."""

    mechanism: Annotated[int, Field("int8", 0)] = 0
    iterations: Annotated[int, Field("int32", 0)] = 0


class DescribeUserScramCredentialsResult(Message, frozen=True):
    """The type of ``results`` in DescribeUserScramCredentialsResponse."""

    user: Annotated[str, Field("string", 0)] = ""
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    credential_infos: Annotated[tuple[CredentialInfo, ...], Field("struct", 0, is_array=True)] = ()


class DescribeUserScramCredentialsResponse(Message, frozen=True):
    """The response in version 0."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    results: Annotated[tuple[DescribeUserScramCredentialsResult, ...], Field("struct", 0, is_array=True)] = ()

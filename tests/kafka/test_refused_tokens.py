"""A broker refuses a token before it expires, as after a key was replaced or a token revoked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.secured_kafka import RECORDS, SecuredKafka, unsecured_token

pytestmark = pytest.mark.kafka


class RefusedFirst:
    """The class in `oauthTokenProvider`: its first token is of no issuer."""

    issued = 0

    def token(self) -> str:
        RefusedFirst.issued += 1
        return unsecured_token("alice") if RefusedFirst.issued > 1 else "canary.token.refused"


@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_r17_a_new_token_follows_a_refused_token(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RefusedFirst, "issued", 0)
    bare = {name: text for name, text in secured.options().items() if not name.startswith("kafka.sasl.")}
    tokens = {"kafka.sasl.mechanism": "OAUTHBEARER", "oauthTokenProvider": f"{__name__}:RefusedFirst"}

    assert secured.read(tmp_path, {**bare, **tokens}) >= RECORDS
    assert RefusedFirst.issued > 1

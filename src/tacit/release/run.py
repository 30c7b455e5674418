"""One certified run: a channel for each part of its plan, opened when it is first asked for."""

from __future__ import annotations

from tacit.accounting import Certificate
from tacit.errors import MechanismMismatch
from tacit.mechanism import Mechanism, NoisyMax
from tacit.noise.streams import Streams
from tacit.release.channel import Channel, Checkpoint
from tacit.release.choice import ChoiceChannel

__all__ = ["Run"]


class Run:
    """What all views of one session share: certificate, noise, and the channel of each part.

    Args:
        certificate: of the whole plan, with its marks.
        digest: of the plan itself.
        n: the number of records.
        streams: the noise.
        replicas: independent runs at once, for audits.
        resume: where part 0 goes on, or None.

    Attributes:
        entry: the number of the ledger's entry, None without a ledger.
        closed: whether no part is opened or asked any more.
    """

    def __init__(
        self,
        certificate: Certificate,
        digest: str,
        n: int,
        streams: Streams,
        replicas: int,
        resume: Checkpoint | None = None,
    ) -> None:
        self.certificate, self.digest = certificate, digest
        self.n, self.streams, self.replicas = n, streams, replicas
        self.entry: int | None = None
        self.closed = False
        self._channels: dict[int, Channel | ChoiceChannel] = {}
        if resume is not None:
            self._channels[0] = self._open(0, streams, resume)

    def channel(self, part: int) -> Channel:
        """The channel of one part that releases sums."""
        found = self.any_channel(part)
        if not isinstance(found, Channel):
            raise MechanismMismatch("this part of the plan makes noisy choices: ask session.select")
        return found

    def choices(self, part: int) -> ChoiceChannel:
        """The channel of one part that makes noisy choices."""
        found = self.any_channel(part)
        if not isinstance(found, ChoiceChannel):
            raise MechanismMismatch("this part of the plan releases sums, it makes no choices: ask session.release")
        return found

    def any_channel(self, part: int) -> Channel | ChoiceChannel:
        """The channel of one part, opened when it is first asked for."""
        if self.closed:
            raise MechanismMismatch("this session is closed: open another one, which is charged by itself")
        if part not in self._channels:
            # A family of its own: two channels never share noise or batches, whatever they share otherwise.
            self._channels[part] = self._open(part, self.streams.child(f"{self.digest}/{part}"), None)
        return self._channels[part]

    def _open(self, part: int, streams: Streams, resume: Checkpoint | None) -> Channel | ChoiceChannel:
        mechanism = self.certificate.plan.parts[part]
        if isinstance(mechanism, NoisyMax):
            if self.replicas != 1 or resume is not None:
                raise MechanismMismatch(
                    "noisy choices have neither replicas nor checkpoints: run them once, to the end"
                )
            return ChoiceChannel(mechanism, self.n, streams)
        if not isinstance(mechanism, Mechanism):
            raise MechanismMismatch("a session runs mechanisms; run each candidate of a selection by itself")
        return Channel(mechanism, self.digest, self.n, streams, replicas=self.replicas, resume=resume)

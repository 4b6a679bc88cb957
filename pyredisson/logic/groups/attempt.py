"""One attempt to acquire a group, and what an interrupt in the middle of it must not leave behind."""

from __future__ import annotations

from pyredisson.logic.groups.group import (
    GroupHold,
    GroupLogic,
    GroupOwner,
    MemberRelease,
    release_all_in_background,
)


class GroupAttempt:
    """One attempt to acquire a group: acquires enough members, or releases again the members that it has acquired.

    Each kind of group acquires and releases members in its own way.
    """

    __slots__ = ("group", "owner")

    def __init__(self, group: GroupLogic, owner: GroupOwner) -> None:
        self.group = group
        self.owner = owner

    async def run(self) -> bool:
        """True: the group is acquired. False: not enough members were acquired, and none of them is held any more."""
        group, groups = self.group, self.group.session.groups
        member_releases: list[MemberRelease] = []
        hold: GroupHold | None = None
        try:
            if await self.acquire_members():
                hold = GroupHold(group, self.owner, self.acquired())
                # The first leases may have ended before the last member was acquired.
                if not group.expire_if_due(hold):
                    groups.add(hold)
                    self.begin(hold)
                    return True
            member_releases = group.releases_after_attempt(self.owner, self.acquired())
            await self.release_members(member_releases)
            return False
        except BaseException:
            # An error, or an interrupt or a cancellation at any point above: the caller never gets the hold.
            self.close()
            # If releases have begun, the same ones are continued: others would release outer levels of the owner.
            member_releases = member_releases or group.releases_after_attempt(self.owner, self.acquired())
            release_all_in_background(member_releases)
            if hold is not None:
                group.end(hold)
                release_all_in_background(group.late_releases(self.owner, hold, member_releases))
            raise

    def begin(self, hold: GroupHold) -> None:
        """The group is acquired."""
        self.group.watch(hold)

    async def acquire_members(self) -> bool:
        """Acquires members. True: enough of them."""
        raise NotImplementedError

    def acquired(self) -> list[bool]:
        """Which members were acquired so far."""
        raise NotImplementedError

    async def release_members(self, member_releases: list[MemberRelease]) -> None:
        """Releases the members of an attempt that did not acquire enough of them."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends an attempt that was interrupted: what it acquires later is released. Idempotent."""

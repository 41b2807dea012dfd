"""Shared memory that holds large frames, for the nodes of `ttm bench record`."""

from __future__ import annotations

from pathlib import Path

VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"
"""Names the file from which Fast DDS takes the settings of every process."""
PROFILE = """\
<?xml version="1.0" encoding="UTF-8"?>
<dds xmlns="http://www.eprosima.com"><profiles>
  <transport_descriptors>
    <transport_descriptor>
      <transport_id>shared_memory</transport_id><type>SHM</type>
      <segment_size>67108864</segment_size><maxMessageSize>8388608</maxMessageSize>
    </transport_descriptor>
    <transport_descriptor><transport_id>network</transport_id><type>UDPv4</type></transport_descriptor>
  </transport_descriptors>
  <participant profile_name="large_frames" is_default_profile="true"><rtps>
    <userTransports><transport_id>shared_memory</transport_id><transport_id>network</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles></dds>
"""


def wide_transport(folder: Path) -> dict[str, str]:
    """Write the profile to a folder, and return the environment that makes processes use it.

    By default the shared memory of Fast DDS holds half a megabyte. Larger messages, such as raw frames of
    640x480 pixels, do not fit, go over UDP in pieces, of which some are lost, and wait for a second or more
    until these are sent again.
    """
    path = folder / "large_frames.xml"
    path.write_text(PROFILE)
    return {VARIABLE: str(path)}

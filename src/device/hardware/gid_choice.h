// Which entry of a port's GID table a connection uses.
#pragma once

#include <infiniband/verbs.h>

#include <optional>
#include <span>

namespace verbena {

// An empty place in the table.
bool is_zero(const ibv_gid& gid);

// RoCE: the entry that routers and switches handle best. RoCE v2 over IPv4 first, then v2 over a
// global IPv6 address, v2 link-local, then RoCE v1; entries that are zero are never taken. Among
// equals the lowest index, which is the interface's own and not that of a VLAN on it. Nothing if
// the table has no usable entry.
std::optional<ibv_gid_entry> choose_gid(std::span<const ibv_gid_entry> table);

// The same, asked of a real device's port.
std::optional<ibv_gid_entry> choose_hardware_gid(ibv_context* context, uint8_t port);

}  // namespace verbena

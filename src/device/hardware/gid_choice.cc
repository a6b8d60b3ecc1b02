#include "src/device/hardware/gid_choice.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace verbena {

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw),
                     [](uint8_t byte) { return byte == 0; });
}

namespace {

bool is_ipv4_mapped(const ibv_gid& gid) {
  static constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix.data(), kPrefix.size()) == 0;
}

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

// Lower is better.
int rank(const ibv_gid_entry& entry) {
  if (entry.gid_type == IBV_GID_TYPE_ROCE_V2) {
    if (is_ipv4_mapped(entry.gid)) return 0;
    return is_link_local(entry.gid) ? 2 : 1;
  }
  return 3;
}

}  // namespace

std::optional<ibv_gid_entry> choose_gid(std::span<const ibv_gid_entry> table) {
  std::optional<ibv_gid_entry> best;
  for (const ibv_gid_entry& entry : table) {
    if (is_zero(entry.gid)) continue;
    if (!best.has_value() || rank(entry) < rank(*best) ||
        (rank(entry) == rank(*best) && entry.gid_index < best->gid_index)) {
      best = entry;
    }
  }
  return best;
}

std::optional<ibv_gid_entry> choose_hardware_gid(ibv_context* context, uint8_t port) {
  // The table may have a thousand places of which a few are taken: one call lists those.
  ibv_device_attr device{};
  ibv_port_attr attributes{};
  if (ibv_query_device(context, &device) != 0 || ibv_query_port(context, port, &attributes) != 0) {
    return {};
  }
  const size_t places = static_cast<size_t>(std::max(attributes.gid_tbl_len, 0)) *
                        std::max<size_t>(device.phys_port_cnt, 1);
  std::vector<ibv_gid_entry> table(places);
  const ssize_t found = ibv_query_gid_table(context, table.data(), table.size(), 0);
  table.resize(found > 0 ? static_cast<size_t>(found) : 0);
  // An address vector holds an 8-bit index.
  table.erase(std::remove_if(table.begin(), table.end(),
                             [port](const ibv_gid_entry& entry) {
                               return entry.port_num != port || entry.gid_index > UINT8_MAX;
                             }),
              table.end());
  return choose_gid(table);
}

}  // namespace verbena

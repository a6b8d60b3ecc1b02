#include "src/device/hardware/gid_choice.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace verbena {

namespace {

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw),
                     [](uint8_t byte) { return byte == 0; });
}

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
  ibv_port_attr attributes;
  if (ibv_query_port(context, port, &attributes) != 0 || attributes.gid_tbl_len <= 0) return {};
  std::vector<ibv_gid_entry> table;
  // An address vector holds an 8-bit index.
  const int entries = std::min(attributes.gid_tbl_len, UINT8_MAX + 1);
  for (int index = 0; index < entries; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0) == 0) {
      table.push_back(entry);
    }
  }
  return choose_gid(table);
}

}  // namespace verbena

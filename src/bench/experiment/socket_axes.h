// Axes of memory that lies on several sockets, for the workloads that can have it so.
#pragma once

#include <string_view>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/experiment/socket_links.h"
#include "verbena/remote_sockets.h"

namespace verbena::bench {

inline constexpr ListLimits kSocketsLimits{
    .what = "number of sockets", .min = 1, .max = kMaxRemoteSockets};
inline constexpr const char* kLinksName = "way between sockets";
using LinksNames = EnumNames<SocketLinks, kSocketLinks, socket_links_name, kLinksName>;

template <auto kMember>
constexpr Axis sockets_axis(std::string_view help) {
  return count_axis<kSocketsLimits, kMember>("sockets", "sockets", "1", help);
}
template <auto kMember>
constexpr Axis links_axis(
    std::string_view standard = "matched",
    std::string_view help = "Of several sockets: one, mesh, matched, proxied, or all") {
  return name_axis<LinksNames, kMember>("links", "links", kLinksName, standard, help);
}

}  // namespace verbena::bench

// Address handles, and which of them lead to this port.
#include <endian.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/device/soft/control.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

constexpr uint8_t kMaxServiceLevel = 15;
constexpr uint16_t kFirstMulticastLid = 0xc000;
constexpr uint16_t kPermissiveLid = 0xffff;
constexpr uint8_t kGrhNextHeader = 0x1b;  // a base transport header
constexpr uint32_t kIpVersion = 6;
constexpr uint32_t kFlowLabelMask = 0xfffff;

bool is_multicast(const ibv_gid& gid) { return gid.raw[0] == 0xff; }

// Of port 1.
bool own_address(ibv_context* context, ibv_gid* gid, uint16_t* lid) {
  ibv_port_attr port{};
  if (query_gid(context, 1, 0, gid) != 0 || query_port(context, 1, &port) != 0) return false;
  *lid = port.lid;
  return true;
}

Ah::Route route_of(const ibv_ah_attr& attributes, const ibv_gid& own_gid, uint16_t own_lid) {
  const bool group_lid = attributes.dlid >= kFirstMulticastLid && attributes.dlid < kPermissiveLid;
  if (attributes.is_global != 0 && is_multicast(attributes.grh.dgid)) {
    return group_lid || attributes.dlid == 0 ? Ah::Route::kGroup : Ah::Route::kNowhere;
  }
  const bool gid_fits =
      attributes.is_global == 0 || memcmp(&attributes.grh.dgid, &own_gid, sizeof(own_gid)) == 0;
  const bool lid_fits =
      attributes.dlid == own_lid || (attributes.dlid == 0 && attributes.is_global != 0);
  return gid_fits && lid_fits ? Ah::Route::kPort : Ah::Route::kNowhere;
}

int check_attributes(const ibv_ah_attr& attributes) {
  if (attributes.port_num != 1) {
    return fail(EINVAL, fmt::format("soft0: an address handle for port {}; there is port 1 only",
                                    attributes.port_num));
  }
  if (attributes.sl > kMaxServiceLevel) {
    return fail(EINVAL, fmt::format("soft0: an address handle of service level {}; the last is {}",
                                    attributes.sl, kMaxServiceLevel));
  }
  if (attributes.is_global != 0 && attributes.grh.sgid_index != 0) {
    return fail(EINVAL, fmt::format("soft0: an address handle from GID index {}; there is 0 only",
                                    attributes.grh.sgid_index));
  }
  if (attributes.is_global != 0 && attributes.grh.flow_label > kFlowLabelMask) {
    return fail(EINVAL, "soft0: the flow label of an address handle has 20 bits");
  }
  if (attributes.is_global == 0 && attributes.dlid == 0) {
    return fail(EINVAL, "soft0: an address handle has neither a LID nor a GID (is_global)");
  }
  return 0;
}

}  // namespace

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  if (check_valid<Domain>(pd) != 0 || check_attributes(*attributes) != 0) return nullptr;
  ibv_gid own_gid;
  uint16_t own_lid = 0;
  if (!own_address(pd->context, &own_gid, &own_lid)) return nullptr;
  auto handle = std::make_unique<Ah>();
  handle->verbs.context = pd->context;
  handle->verbs.pd = pd;
  handle->domain = &as_domain(pd);
  handle->attributes = *attributes;
  handle->route = route_of(*attributes, own_gid, own_lid);
  if (attributes->is_global != 0) {
    const ibv_global_route& route = attributes->grh;
    handle->grh.version_tclass_flow =
        htobe32(kIpVersion << 28 | uint32_t{route.traffic_class} << 20 | route.flow_label);
    handle->grh.next_hdr = kGrhNextHeader;
    handle->grh.hop_limit = route.hop_limit;
    handle->grh.sgid = own_gid;
    handle->grh.dgid = route.dgid;
  }
  as_domain(pd).users.fetch_add(1);
  make_valid(*handle, pd->context);
  handle->self = handle.get();
  return &handle.release()->verbs;
}

int destroy_ah(ibv_ah* verbs) {
  if (const int error = check_valid<Ah>(verbs); error != 0) return error;
  Ah* handle = &as_ah(verbs);
  end_use(handle->domain->users);
  retire(handle);
  return 0;
}

int init_ah_from_wc(ibv_context* context, uint8_t port, const ibv_wc* completion,
                    const ibv_grh* grh, ibv_ah_attr* attributes) {
  if (const int error = check_valid_context(context); error != 0) return error;
  *attributes = {};
  attributes->dlid = completion->slid;
  attributes->sl = completion->sl;
  attributes->src_path_bits = completion->dlid_path_bits;
  attributes->port_num = port;
  if ((completion->wc_flags & IBV_WC_GRH) == 0) return 0;
  ibv_gid own_gid;
  uint16_t own_lid = 0;
  if (!own_address(context, &own_gid, &own_lid)) return errno;
  // What was sent to a group is answered from the port's own address.
  if (!is_multicast(grh->dgid) && memcmp(&grh->dgid, &own_gid, sizeof(own_gid)) != 0) {
    return fail(EINVAL, "soft0: the datagram was not sent to a GID of this port");
  }
  attributes->is_global = 1;
  attributes->grh.dgid = grh->sgid;
  attributes->grh.hop_limit = grh->hop_limit;
  const uint32_t flow = be32toh(grh->version_tclass_flow);
  attributes->grh.flow_label = flow & kFlowLabelMask;
  attributes->grh.traffic_class = static_cast<uint8_t>(flow >> 20);
  return 0;
}

}  // namespace verbena::soft

// Address handles, and which of them lead to this port.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "src/device/soft/control.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

constexpr uint8_t kMaxServiceLevel = 15;
constexpr uint16_t kFirstMulticastLid = 0xc000;
constexpr uint16_t kPermissiveLid = 0xffff;
constexpr uint32_t kFlowLabelMask = 0xfffff;

// Of this machine's devices, whichever they are: a queue pair's number says where it is.
Ah::Route route_of(LinkLayer link_layer, const ibv_ah_attr& attributes) {
  const bool ethernet = link_layer == LinkLayer::kEthernet;
  const bool group_lid = attributes.dlid >= kFirstMulticastLid && attributes.dlid < kPermissiveLid;
  if (attributes.is_global != 0 && is_multicast(attributes.grh.dgid)) {
    return ethernet || group_lid || attributes.dlid == 0 ? Ah::Route::kGroup : Ah::Route::kNowhere;
  }
  const bool gid_fits = attributes.is_global == 0 || is_own_gid(attributes.grh.dgid);
  const bool lid_fits = ethernet || is_own_lid(attributes.dlid) ||
                        (attributes.dlid == 0 && attributes.is_global != 0);
  return gid_fits && lid_fits ? Ah::Route::kPort : Ah::Route::kNowhere;
}

int check_attributes(const ibv_context* context, const ibv_ah_attr& attributes) {
  if (attributes.port_num != 1) {
    return fail(EINVAL, fmt::format("soft0: an address handle for port {}; there is port 1 only",
                                    attributes.port_num));
  }
  if (attributes.sl > kMaxServiceLevel) {
    return fail(EINVAL, fmt::format("soft0: an address handle of service level {}; the last is {}",
                                    attributes.sl, kMaxServiceLevel));
  }
  const bool infiniband = link_layer_of(context) == LinkLayer::kInfiniBand;
  if (infiniband && attributes.is_global != 0 && attributes.grh.sgid_index != 0) {
    return fail(EINVAL, fmt::format("soft0: an address handle from GID index {}; there is 0 only",
                                    attributes.grh.sgid_index));
  }
  if (attributes.is_global != 0 && attributes.grh.flow_label > kFlowLabelMask) {
    return fail(EINVAL, "soft0: the flow label of an address handle has 20 bits");
  }
  if (attributes.is_global == 0 && attributes.dlid == 0) {
    if (infiniband)
      return fail(EINVAL, "soft0: an address handle has neither a LID nor a GID (is_global)");
  }
  return check_peer_address(context, attributes);
}

// The entry of the port's table that a datagram was sent to.
bool find_own_gid(const ibv_context* context, const ReadHeader& header, uint8_t* index) {
  const LinkLayer link_layer = link_layer_of(context);
  const bool ethernet = link_layer == LinkLayer::kEthernet;
  // Of other presentations: what the port answers by.
  *index = ethernet ? kEthernetIpv4Index : 0;
  if (is_multicast(header.destination)) return true;
  const bool version_2 = header.is_udp;
  ibv_gid_entry entry;
  for (uint32_t i = 0; describe_gid(device_index(context), link_layer, i, &entry); ++i) {
    if (memcmp(&entry.gid, &header.destination, sizeof(entry.gid)) != 0) continue;
    if (ethernet && (entry.gid_type == IBV_GID_TYPE_ROCE_V2) != version_2) continue;
    *index = static_cast<uint8_t>(i);
    return true;
  }
  return is_own_gid(header.destination);
}

}  // namespace

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  if (check_valid<Domain>(pd) != 0 || check_attributes(pd->context, *attributes) != 0)
    return nullptr;
  Rnic& rnic = *as_context(pd->context).rnic;
  if (!count_in(rnic.address_handle_count, kMaxAddressHandles, Ah::kName)) return nullptr;
  auto handle = std::make_unique<Ah>();
  handle->verbs.context = pd->context;
  handle->verbs.pd = pd;
  handle->domain = &as_domain(pd);
  handle->attributes = *attributes;
  handle->origin = make_origin(attributes->sl, device_index(pd->context));
  handle->route = route_of(link_layer_of(pd->context), *attributes);
  if (attributes->is_global != 0) {
    ibv_gid_entry own;
    describe_gid(device_index(pd->context), link_layer_of(pd->context), attributes->grh.sgid_index,
                 &own);
    handle->header = NetworkHeader(own, attributes->grh);
  }
  static std::atomic<uint32_t> next_handle{1};
  handle->verbs.handle = next_handle.fetch_add(1, std::memory_order_relaxed);
  as_domain(pd).users.fetch_add(1);
  make_valid(*handle, pd->context);
  handle->self = handle.get();
  return &handle.release()->verbs;
}

int destroy_ah(ibv_ah* verbs) {
  if (const int error = check_valid<Ah>(verbs); error != 0) return error;
  Ah* handle = &as_ah(verbs);
  end_use(handle->domain->users);
  end_use(as_context(verbs->context).rnic->address_handle_count);
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
  const ReadHeader header = read_header(*grh);
  uint8_t own_index = 0;
  // What was sent to a group is answered from the port's own address.
  if (!find_own_gid(context, header, &own_index)) {
    return fail(EINVAL, "soft0: the datagram was not sent to a GID of this port");
  }
  attributes->is_global = 1;
  attributes->grh.sgid_index = own_index;
  attributes->grh.dgid = header.source;
  attributes->grh.hop_limit = header.hop_limit;
  attributes->grh.flow_label = header.flow_label;
  attributes->grh.traffic_class = header.traffic_class;
  return 0;
}

}  // namespace verbena::soft

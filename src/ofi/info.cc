#include "src/ofi/info.h"

#include <rdma/fi_errno.h>

#include <cstdlib>
#include <cstring>

#include "src/ofi/node_names.h"

namespace verbena::ofi {
namespace {

// libfabric frees these structures, and a newer one reads what it has added at their ends: zeros.
constexpr size_t kRoomOfAnyVersion = 1024;
static_assert(sizeof(fi_info) <= kRoomOfAnyVersion / 2 &&
              sizeof(fi_domain_attr) <= kRoomOfAnyVersion / 2);

template <typename Structure>
bool allocate(Structure*& structure) {
  structure = static_cast<Structure*>(calloc(1, kRoomOfAnyVersion));
  return structure != nullptr;
}

void free_info(fi_info* info) {
  if (info == nullptr) return;
  if (info->domain_attr != nullptr) free(info->domain_attr->name);
  if (info->fabric_attr != nullptr) free(info->fabric_attr->name);
  free(info->src_addr);
  free(info->dest_addr);
  free(info->tx_attr);
  free(info->rx_attr);
  free(info->ep_attr);
  free(info->domain_attr);
  free(info->fabric_attr);
  free(info);
}

// Of an endpoint.
constexpr size_t kContexts = 1;
// Of a domain: objects of each kind, and registered memory.
constexpr size_t kObjects = 1024;
constexpr size_t kRegions = 65536;

constexpr bool within(uint64_t asked, uint64_t there) { return (asked & ~there) == 0; }

// Flags of a send that it knows; each of the completion levels is that of delivery, or weaker.
constexpr uint64_t kSendFlags = FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE |
                                FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE |
                                FI_REMOTE_CQ_DATA | FI_MORE;
constexpr uint64_t kReceiveFlags = FI_COMPLETION | FI_MULTI_RECV | FI_MORE;

bool fits(const fi_tx_attr& asked) {
  return within(asked.caps, kCapabilities) && within(asked.op_flags, kSendFlags) &&
         within(asked.msg_order, kOrders) && asked.comp_order == FI_ORDER_NONE &&
         asked.inject_size <= kInjectBytes && asked.size <= kQueueOperations &&
         asked.iov_limit <= kPieces && asked.rma_iov_limit <= kPieces;
}

bool fits(const fi_rx_attr& asked) {
  return within(asked.caps, kCapabilities) && within(asked.op_flags, kReceiveFlags) &&
         within(asked.msg_order, kOrders) && within(asked.comp_order, FI_ORDER_NONE) &&
         asked.total_buffered_recv == 0 && asked.size <= kQueueOperations &&
         asked.iov_limit <= kPieces;
}

bool fits(const fi_ep_attr& asked) {
  return (asked.type == FI_EP_UNSPEC || asked.type == FI_EP_RDM) &&
         asked.protocol == FI_PROTO_UNSPEC && asked.max_msg_size <= kMaxMessageBytes &&
         asked.msg_prefix_size == 0 && asked.max_order_raw_size <= kOrderedBytes &&
         asked.max_order_war_size <= kOrderedBytes && asked.max_order_waw_size <= kOrderedBytes &&
         asked.tx_ctx_cnt <= kContexts && asked.rx_ctx_cnt <= kContexts && asked.auth_key_size == 0;
}

bool fits(const fi_domain_attr& asked) {
  return (asked.name == nullptr || strcmp(asked.name, device_name()) == 0) &&
         asked.control_progress != FI_PROGRESS_AUTO && asked.data_progress != FI_PROGRESS_AUTO &&
         asked.cq_data_size <= kDataBytes && asked.mr_key_size <= kKeyBytes &&
         asked.mr_iov_limit <= kPieces && asked.mr_cnt <= kRegions && asked.cq_cnt <= kObjects &&
         asked.cntr_cnt <= kObjects && asked.ep_cnt <= kObjects && asked.tx_ctx_cnt <= kObjects &&
         asked.rx_ctx_cnt <= kObjects && asked.max_ep_tx_ctx <= kContexts &&
         asked.max_ep_rx_ctx <= kContexts && within(asked.caps, FI_LOCAL_COMM | FI_REMOTE_COMM) &&
         asked.auth_key_size == 0;
}

bool fits(const fi_fabric_attr& asked) {
  return asked.name == nullptr || strcmp(asked.name, kProviderName) == 0;
}

bool fits(const fi_info& asked) {
  return within(asked.caps, kCapabilities) && asked.addr_format == FI_FORMAT_UNSPEC &&
         (asked.tx_attr == nullptr || fits(*asked.tx_attr)) &&
         (asked.rx_attr == nullptr || fits(*asked.rx_attr)) &&
         (asked.ep_attr == nullptr || fits(*asked.ep_attr)) &&
         (asked.domain_attr == nullptr || fits(*asked.domain_attr)) &&
         (asked.fabric_attr == nullptr || fits(*asked.fabric_attr));
}

// What is asked for, or all if nothing is. Messages and remote memory without a direction are those
// of both, which programs read back (fi_getinfo(3)).
constexpr uint64_t chosen(uint64_t asked) {
  constexpr uint64_t kMessages = FI_SEND | FI_RECV;
  constexpr uint64_t kRemote = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (asked == 0) return kCapabilities;
  uint64_t all = asked;
  if ((asked & (FI_MSG | FI_TAGGED)) != 0 && (asked & kMessages) == 0) all |= kMessages;
  if ((asked & (FI_RMA | FI_ATOMIC)) != 0 && (asked & kRemote) == 0) all |= kRemote;
  return all;
}

void fill(uint32_t version, const fi_info* hints, fi_info& info) {
  const uint64_t capabilities =
      chosen(hints == nullptr ? 0 : hints->caps) | FI_LOCAL_COMM | FI_REMOTE_COMM;
  info.caps = capabilities;
  info.addr_format = FI_FORMAT_UNSPEC;

  const fi_tx_attr* sends = hints == nullptr ? nullptr : hints->tx_attr;
  *info.tx_attr = {.caps = capabilities & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND |
                                           FI_READ | FI_WRITE | FI_FENCE),
                   .mode = 0,
                   .op_flags = sends == nullptr ? 0 : sends->op_flags,
                   .msg_order = kOrders,
                   .comp_order = FI_ORDER_NONE,
                   .inject_size = kInjectBytes,
                   .size = kQueueOperations,
                   .iov_limit = kPieces,
                   .rma_iov_limit = kPieces,
                   .tclass = 0};
  const fi_rx_attr* receives = hints == nullptr ? nullptr : hints->rx_attr;
  *info.rx_attr = {.caps = capabilities & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV |
                                           FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV |
                                           FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT),
                   .mode = 0,
                   .op_flags = receives == nullptr ? 0 : receives->op_flags,
                   .msg_order = kOrders,
                   .comp_order = FI_ORDER_NONE,
                   .total_buffered_recv = 0,
                   .size = kQueueOperations,
                   .iov_limit = kPieces};

  fi_ep_attr& endpoint = *info.ep_attr;
  endpoint.type = FI_EP_RDM;
  endpoint.protocol = FI_PROTO_UNSPEC;
  endpoint.protocol_version = 1;
  endpoint.max_msg_size = kMaxMessageBytes;
  endpoint.max_order_raw_size = kOrderedBytes;
  endpoint.max_order_war_size = kOrderedBytes;
  endpoint.max_order_waw_size = kOrderedBytes;
  // All bits of a tag are the program's; where it says how it divides them, that is what it gets
  // back.
  const uint64_t tags =
      hints == nullptr || hints->ep_attr == nullptr ? 0 : hints->ep_attr->mem_tag_format;
  endpoint.mem_tag_format = tags == 0 ? ~uint64_t{0} : tags;
  endpoint.tx_ctx_cnt = kContexts;
  endpoint.rx_ctx_cnt = kContexts;

  const fi_domain_attr* asked = hints == nullptr ? nullptr : hints->domain_attr;
  fi_domain_attr& domain = *info.domain_attr;
  domain.threading =
      asked == nullptr || asked->threading == FI_THREAD_UNSPEC ? FI_THREAD_SAFE : asked->threading;
  domain.control_progress = FI_PROGRESS_MANUAL;
  domain.data_progress = FI_PROGRESS_MANUAL;
  domain.resource_mgmt = FI_RM_ENABLED;
  domain.av_type =
      asked == nullptr || asked->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : asked->av_type;
  // What programs before 1.5 ask for by name they get; others need not do anything for this
  // provider.
  const int mode = asked == nullptr ? 0 : asked->mr_mode;
  domain.mr_mode = mode == FI_MR_BASIC || mode == FI_MR_SCALABLE ? mode : 0;
  if (mode == FI_MR_UNSPEC && FI_VERSION_LT(version, FI_VERSION(1, 5)))
    domain.mr_mode = FI_MR_SCALABLE;
  domain.mr_key_size = kKeyBytes;
  domain.mr_iov_limit = kPieces;
  domain.mr_cnt = kRegions;
  domain.cq_data_size = kDataBytes;
  domain.cq_cnt = kObjects;
  domain.ep_cnt = kObjects;
  domain.tx_ctx_cnt = kObjects;
  domain.rx_ctx_cnt = kObjects;
  domain.max_ep_tx_ctx = kContexts;
  domain.max_ep_rx_ctx = kContexts;
  domain.cntr_cnt = kObjects;
  domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
}

}  // namespace

const char* device_name() {
  const char* name = getenv("VERBENA_DEVICE");
  return name == nullptr || *name == '\0' ? "soft0" : name;
}

int get_info(uint32_t version, const char* node, const char* service, uint64_t flags,
             const fi_info* hints, fi_info** info) {
  if (hints != nullptr && !fits(*hints)) return -FI_ENODATA;
  fi_info* made = nullptr;
  int result = -FI_ENOMEM;
  if (!allocate(made)) return result;
  if (allocate(made->tx_attr) && allocate(made->rx_attr) && allocate(made->ep_attr) &&
      allocate(made->domain_attr) && allocate(made->fabric_attr)) {
    fill(version, hints, *made);
    made->domain_attr->name = strdup(device_name());
    made->fabric_attr->name = strdup(kProviderName);
    if (made->domain_attr->name != nullptr && made->fabric_attr->name != nullptr)
      result = fill_addresses(node, service, flags, hints, *made);
    if (result == 0) {
      *info = made;
      return 0;
    }
  }
  free_info(made);
  return result;
}

bool needs_lock(fi_threading threading) { return threading != FI_THREAD_DOMAIN; }

}  // namespace verbena::ofi

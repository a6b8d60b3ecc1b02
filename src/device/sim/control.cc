#include "src/device/sim/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "src/device/last_error.h"
#include "src/device/sim/datagrams.h"
#include "src/device/sim/objects.h"
#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"
#include "src/device/sim/unreliable_transitions.h"

namespace verbena::sim {

namespace {

constexpr uint32_t kMaxQueuePairs = 1 << 24;
constexpr uint32_t kMaxQueueWrs = 16384;
constexpr uint32_t kMaxSges = 32;  // mlx4; mlx5 takes 30
constexpr uint32_t kMaxCqes = 1 << 22;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kMaxRegionBytes = uint64_t{1} << 46;

LastError last_error_line;

const char* last_error() { return last_error_line.text(); }

Node& node_of(ibv_context* verbs) { return *as_context(verbs).node; }

int query_device(ibv_context* verbs, ibv_device_attr* attributes) {
  const Profile& profile = node_of(verbs).profile;
  *attributes = {};
  std::strcpy(attributes->fw_ver, "sim");
  attributes->node_guid = node_of(verbs).number + 1;
  attributes->sys_image_guid = attributes->node_guid;
  attributes->max_mr_size = kMaxRegionBytes;
  attributes->page_size_cap = ~uint64_t{kPageBytes - 1};
  attributes->max_qp = kMaxQueuePairs;
  attributes->max_qp_wr = kMaxQueueWrs;
  attributes->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
  attributes->max_sge = kMaxSges;
  attributes->max_sge_rd = kMaxSges;
  attributes->max_cq = kMaxQueuePairs;
  attributes->max_cqe = kMaxCqes;
  attributes->max_mr = kMaxQueuePairs - 1;
  attributes->max_pd = kMaxQueuePairs;
  attributes->max_qp_rd_atom = static_cast<int>(profile.max_outstanding_reads);
  attributes->max_qp_init_rd_atom = attributes->max_qp_rd_atom;
  attributes->atomic_cap = IBV_ATOMIC_HCA;
  attributes->max_srq = kMaxQueuePairs;
  attributes->max_srq_wr = kMaxQueueWrs;
  attributes->max_srq_sge = kMaxSges;
  attributes->max_pkeys = 1;
  attributes->max_ah = kMaxQueuePairs;
  attributes->phys_port_cnt = 1;
  return 0;
}

int query_port(ibv_context* verbs, uint8_t port, ibv_port_attr* attributes) {
  if (port != 1) return refuse(EINVAL, "a simulated RNIC has one port, number 1");
  const Node& node = node_of(verbs);
  *attributes = {};
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_mtu = IBV_MTU_4096;
  int mtu = IBV_MTU_256;
  while ((128u << mtu) < node.profile.mtu_bytes) ++mtu;
  attributes->active_mtu = static_cast<ibv_mtu>(mtu);
  attributes->gid_tbl_len = 1;
  attributes->max_msg_sz = 1u << 31;
  attributes->pkey_tbl_len = 1;
  // LIDs are the nodes' numbers, from 1.
  attributes->lid = static_cast<uint16_t>(node.number + 1);
  attributes->sm_lid = 1;
  attributes->active_width = 2;
  attributes->active_speed = 16;
  attributes->phys_state = 5;
  attributes->link_layer = IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

int query_gid(ibv_context* verbs, uint8_t, int index, ibv_gid* gid) {
  if (index != 0) return refuse(EINVAL, "a simulated RNIC has one GID, index 0");
  *gid = gid_of(node_of(verbs));
  return 0;
}

ibv_pd* alloc_pd(ibv_context* context) {
  auto* pd = new Pd;
  pd->verbs.context = context;
  return &pd->verbs;
}
int dealloc_pd(ibv_pd* verbs) {
  Pd& pd = as_pd(verbs);
  // As in destroy_srq().
  if (pd.users != 0 && !node_of(verbs->context).crashed) {
    return refuse(EBUSY, fmt::format("the protection domain still has {} objects; destroy them "
                                     "first",
                                     pd.users));
  }
  delete &pd;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length_bytes, uint64_t iova, unsigned access) {
  constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    refuse(EINVAL, "remote write or atomic access needs IBV_ACCESS_LOCAL_WRITE too");
    return nullptr;
  }
  if (length_bytes > kMaxRegionBytes) {
    refuse(EINVAL, fmt::format("a region has at most {} bytes", kMaxRegionBytes));
    return nullptr;
  }
  Node& node = node_of(pd->context);
  Simulation& simulation = node.simulation;
  auto region = std::make_unique<Region>();
  region->verbs.context = pd->context;
  region->verbs.pd = pd;
  region->verbs.addr = address;
  region->verbs.length = length_bytes;
  region->owner = simulation.running();
  // What nobody placed lies near the thread, or outside of all near the device.
  const int placed = simulation.socket_of_memory(address, length_bytes);
  region->socket = placed >= 0                ? static_cast<uint32_t>(placed)
                   : region->owner != nullptr ? region->owner->socket
                                              : as_context(pd->context).socket;
  region->iova = iova;
  region->access = access;
  if (length_bytes > 0) {
    const uint64_t page_bytes = node.profile.page_bytes;
    const uint64_t covered = page_bytes * kTranslationsOfLine;
    const uint64_t lines = (length_bytes + covered - 1) / covered;
    if (lines > 1) region->further_translations = std::make_unique<CacheStamp[]>(lines - 1);
  }
  Region* const made = region.get();
  ++as_pd(pd).users;
  node.rnic.add_region(std::move(region));
  const Profile& profile = node.profile;
  simulation.charge(profile.registration +
                    (length_bytes + kPageBytes - 1) / kPageBytes * profile.registration_page);
  return &made->verbs;
}

int dereg_mr(ibv_mr* verbs) {
  Region& region = as_region(verbs);
  Node& node = node_of(region.verbs.context);
  node.simulation.forget_place(verbs->addr, verbs->length);
  leave_domain(node, verbs->pd);
  node.rnic.remove_region(verbs->rkey);
  return 0;
}

// Simulated RNICs move bytes between the program's own addresses.
RegionMemory region_memory(const ibv_mr*) { return RegionMemory::kFollows; }

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  auto* channel = new Channel;
  channel->verbs.context = context;
  channel->verbs.fd = -1;
  return &channel->verbs;
}
int destroy_comp_channel(ibv_comp_channel* verbs) {
  // As in destroy_srq(). refcnt: as libibverbs has it.
  if (verbs->refcnt != 0 && !node_of(verbs->context).crashed) {
    return refuse(EBUSY, "the completion channel still has completion queues");
  }
  delete &as_channel(verbs);
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqes, void* cq_context, ibv_comp_channel* channel,
                  int) {
  if (cqes <= 0 || static_cast<uint32_t>(cqes) > kMaxCqes) {
    refuse(EINVAL, fmt::format("a completion queue needs 1 to {} CQEs, not {}", kMaxCqes, cqes));
    return nullptr;
  }
  auto* cq = new Cq;
  cq->verbs.context = context;
  cq->verbs.channel = channel;
  if (channel != nullptr) ++channel->refcnt;
  cq->verbs.cq_context = cq_context;
  cq->verbs.cqe = cqes;
  cq->own.poller = node_of(context).simulation.running();
  return &cq->verbs;
}

int destroy_cq(ibv_cq* verbs) {
  Cq& cq = as_cq(verbs);
  if (cq.own.users != 0) return refuse(EBUSY, "the completion queue still has queue pairs");
  if (cq.channel() != nullptr && !cq.node().crashed) {
    std::erase(cq.channel()->events, &cq);
    --cq.channel()->verbs.refcnt;
  }
  delete &cq;
  return 0;
}

int get_cq_event(ibv_comp_channel* verbs, ibv_cq** cq, void** cq_context) {
  Channel& channel = as_channel(verbs);
  wait_for_event(verbs, -1);
  Cq& first = *channel.events.front();
  channel.events.pop_front();
  *cq = &first.verbs;
  *cq_context = first.verbs.cq_context;
  return 0;
}

void ack_cq_events(ibv_cq*, unsigned) {}

int init_receives(ReceiveQueue& queue, Node& node, uint32_t depth, uint32_t max_sges) {
  queue.node = &node;
  queue.depth = std::max(depth, 1u);
  queue.max_sges = std::max(max_sges, 1u);
  queue.order = std::make_unique<uint32_t[]>(queue.depth);
  queue.receives = std::make_unique<PostedReceive[]>(queue.depth);
  queue.sges = std::make_unique<ibv_sge[]>(size_t{queue.depth} * queue.max_sges);
  queue.release_all();
  return 0;
}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  if (attributes->attr.max_wr == 0 || attributes->attr.max_wr > kMaxQueueWrs ||
      attributes->attr.max_sge > kMaxSges) {
    refuse(EINVAL,
           fmt::format("a shared receive queue needs 1 to {} work requests of up to {} SGEs",
                       kMaxQueueWrs, kMaxSges));
    return nullptr;
  }
  auto* srq = new Srq;
  srq->verbs.context = pd->context;
  srq->verbs.pd = pd;
  ++as_pd(pd).users;
  init_receives(srq->queue, node_of(pd->context), attributes->attr.max_wr,
                attributes->attr.max_sge);
  return &srq->verbs;
}
int modify_srq(ibv_srq*, ibv_srq_attr*, int) {
  return refuse(EOPNOTSUPP,
                "a simulated shared receive queue cannot be resized and has no limit event");
}
int query_srq(ibv_srq* verbs, ibv_srq_attr* attributes) {
  const ReceiveQueue& queue = as_srq(verbs).queue;
  *attributes = {.max_wr = queue.depth, .max_sge = queue.max_sges, .srq_limit = 0};
  return 0;
}
int destroy_srq(ibv_srq* verbs) {
  Srq& srq = as_srq(verbs);
  // Threads of a crashed node stand still, one maybe with the queue pair of a connection that it
  // was making: who cleans up behind them cannot destroy that one.
  if (srq.users != 0 && !srq.queue.node->crashed) {
    return refuse(EBUSY, "the shared receive queue still has queue pairs");
  }
  leave_domain(*srq.queue.node, verbs->pd);
  // What is under way to it may still come: it is given up with the simulation.
  srq.queue.node->rnic.keep(&srq);
  return 0;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Node& node = node_of(pd->context);
  const ibv_qp_cap& cap = init->cap;
  const bool known =
      init->qp_type == IBV_QPT_RC || init->qp_type == IBV_QPT_UC || init->qp_type == IBV_QPT_UD;
  if (!known || init->send_cq == nullptr || init->recv_cq == nullptr) {
    refuse(EINVAL,
           "a simulated queue pair is of type RC, UC or UD and needs two completion queues");
    return nullptr;
  }
  const uint64_t most_inline_bytes =
      std::min<uint64_t>(init->qp_type == IBV_QPT_UD ? node.profile.max_inline_datagram_bytes
                                                     : node.profile.max_inline_bytes,
                         UINT16_MAX);
  if (cap.max_send_wr > kMaxQueueWrs || cap.max_recv_wr > kMaxQueueWrs ||
      cap.max_send_sge > kMaxSges || cap.max_recv_sge > kMaxSges ||
      cap.max_inline_data > most_inline_bytes) {
    refuse(EINVAL,
           fmt::format("asked for {} work requests of {} SGEs and {} inline bytes; {} has at most "
                       "{}, {} and {}",
                       std::max(cap.max_send_wr, cap.max_recv_wr),
                       std::max(cap.max_send_sge, cap.max_recv_sge), cap.max_inline_data,
                       node.profile.name, kMaxQueueWrs, kMaxSges, most_inline_bytes));
    return nullptr;
  }
  QueuePair& qp = node.rnic.add_queue_pair(init->qp_type);
  qp.verbs.context = pd->context;
  qp.verbs.pd = pd;
  qp.verbs.send_cq = init->send_cq;
  qp.verbs.recv_cq = init->recv_cq;
  qp.verbs.srq = init->srq;
  ++as_pd(pd).users;
  ++qp.send_cq()->own.users;
  ++qp.recv_cq()->own.users;
  if (init->srq != nullptr) {
    ++qp.srq()->users;
  } else if (cap.max_recv_wr > 0) {
    init_receives(qp.make_own_receives(), node, cap.max_recv_wr, cap.max_recv_sge);
  }
  QueuePairChoices& chosen = qp.own.chosen;
  chosen.path_mtu = IBV_MTU_256;
  chosen.socket = static_cast<uint16_t>(as_context(pd->context).socket);
  chosen.signals_all = init->sq_sig_all != 0;
  chosen.doorbell_register = &as_context(pd->context).take_register();
  chosen.depth = static_cast<uint16_t>(std::max(cap.max_send_wr, 1u));
  chosen.receive_depth = static_cast<uint16_t>(cap.max_recv_wr);
  chosen.max_sges = static_cast<uint8_t>(std::max(cap.max_send_sge, 1u));
  chosen.max_receive_sges = static_cast<uint8_t>(cap.max_recv_sge);
  chosen.max_inline_bytes = static_cast<uint16_t>(cap.max_inline_data);
  return &qp.verbs;
}

void take_path(QueuePair& qp, const ibv_qp_attr& attributes) {
  Simulation& simulation = qp.node->simulation;
  const size_t number = attributes.ah_attr.dlid - size_t{1};
  // Not that of a former connection.
  qp.own.chosen.peer_node = number < simulation.nodes() ? &simulation.node(number) : nullptr;
  qp.own.chosen.mtu_bytes = static_cast<uint16_t>(128u << attributes.path_mtu);
  qp.own.chosen.path_mtu = static_cast<uint8_t>(attributes.path_mtu);
  qp.own.chosen.dest_qp_num = attributes.dest_qp_num;
  qp.own.chosen.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  qp.own.chosen.min_rnr_timer = attributes.min_rnr_timer;
}

int modify_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int mask) {
  QueuePair& qp = as_qp(verbs);
  if (!qp.is_reliable()) {
    const int error = check_transition(qp, *attributes, mask);
    if (error != 0) return error;
  }
  if ((mask & IBV_QP_QKEY) != 0) qp.own.chosen.qkey = attributes->qkey;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
    qp.own.chosen.qp_access_flags = attributes->qp_access_flags;
  }
  if ((mask & IBV_QP_STATE) == 0) return 0;
  const ibv_qp_state from = qp.state();
  switch (attributes->qp_state) {
    case IBV_QPS_RESET:
      qp.node->rnic.reset(qp);
      break;
    case IBV_QPS_INIT:
      if (from != IBV_QPS_RESET) return refuse(EINVAL, "a queue pair goes to INIT from RESET only");
      break;
    case IBV_QPS_RTR:
      if (from != IBV_QPS_INIT) return refuse(EINVAL, "a queue pair goes to RTR from INIT only");
      if (qp.sends_datagrams()) {
        qp.own.chosen.mtu_bytes = static_cast<uint16_t>(qp.node->profile.mtu_bytes);
        break;
      }
      take_path(qp, *attributes);
      if (qp.own.chosen.peer_node == nullptr) {
        return refuse(EINVAL,
                      fmt::format("there is no node with LID {}", attributes->ah_attr.dlid));
      }
      break;
    case IBV_QPS_RTS:
      if (from == IBV_QPS_SQE) break;
      if (from != IBV_QPS_RTR) return refuse(EINVAL, "a queue pair goes to RTS from RTR only");
      if (!qp.is_reliable()) break;
      qp.own.chosen.timeout = attributes->timeout;
      qp.own.chosen.retry_cnt = attributes->retry_cnt;
      qp.own.chosen.rnr_retry = attributes->rnr_retry;
      qp.own.chosen.max_rd_atomic = static_cast<uint8_t>(
          std::min<uint64_t>(attributes->max_rd_atomic, qp.node->profile.max_outstanding_reads));
      break;
    case IBV_QPS_ERR:
      if (from == IBV_QPS_RESET)
        return refuse(EINVAL, "a queue pair does not go from RESET to ERR");
      qp.node->rnic.fail(qp, IBV_WC_WR_FLUSH_ERR);
      break;
    default:
      return refuse(
          EINVAL,
          "a simulated queue pair is put into the states RESET, INIT, RTR, RTS and ERR only");
  }
  verbs->state = attributes->qp_state;
  return 0;
}

int query_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  const QueuePair& qp = as_qp(verbs);
  const QueuePairChoices& own = qp.own.chosen;
  *attributes = {};
  attributes->qp_state = qp.state();
  attributes->cur_qp_state = qp.state();
  attributes->path_mtu = static_cast<ibv_mtu>(own.path_mtu);
  attributes->dest_qp_num = own.dest_qp_num;
  attributes->qp_access_flags = own.qp_access_flags;
  attributes->qkey = own.qkey;
  attributes->cap = {.max_send_wr = own.depth,
                     .max_recv_wr = own.receive_depth,
                     .max_send_sge = own.max_sges,
                     .max_recv_sge = own.max_receive_sges,
                     .max_inline_data = own.max_inline_bytes};
  attributes->max_rd_atomic = own.max_rd_atomic;
  attributes->max_dest_rd_atomic = own.max_dest_rd_atomic;
  attributes->min_rnr_timer = own.min_rnr_timer;
  attributes->timeout = own.timeout;
  attributes->retry_cnt = own.retry_cnt;
  attributes->rnr_retry = own.rnr_retry;
  *init = {};
  init->send_cq = qp.verbs.send_cq;
  init->recv_cq = qp.verbs.recv_cq;
  init->srq = qp.verbs.srq;
  init->cap = attributes->cap;
  init->qp_type = qp.verbs.qp_type;
  init->sq_sig_all = own.signals_all ? 1 : 0;
  return 0;
}

int destroy_qp(ibv_qp* verbs) {
  QueuePair& qp = as_qp(verbs);
  qp.node->rnic.remove_queue_pair(qp);
  VERBENA_ASSERT(qp.own.chosen.doorbell_register->users > 0);
  --qp.own.chosen.doorbell_register->users;
  --qp.send_cq()->own.users;
  --qp.recv_cq()->own.users;
  if (qp.srq() != nullptr) --qp.srq()->users;
  leave_domain(*qp.node, verbs->pd);
  verbs->send_cq = nullptr;
  verbs->recv_cq = nullptr;
  return 0;
}

int get_async_event(ibv_context*, ibv_async_event*) {
  errno = EAGAIN;
  return -1;
}
void ack_async_event(ibv_async_event*) {}

ibv_device* device_of(const std::string& name) {
  // One for each profile, for ever: contexts point to it.
  static thread_local std::vector<std::unique_ptr<ibv_device>> devices;
  for (const auto& device : devices) {
    if (name == device->name) return device.get();
  }
  auto device = std::make_unique<ibv_device>();
  device->node_type = IBV_NODE_CA;
  device->transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device->name, name.c_str(), sizeof(device->name) - 1);
  devices.push_back(std::move(device));
  return devices.back().get();
}

}  // namespace

int refuse(int error, std::string_view text) {
  last_error_line.set(text);
  errno = error;
  return error;
}

const VerbsControl& control() {
  static constexpr VerbsControl kControl = {
      .query_device = query_device,
      .query_port = query_port,
      .query_gid = query_gid,
      .alloc_pd = alloc_pd,
      .dealloc_pd = dealloc_pd,
      .reg_mr = reg_mr,
      .dereg_mr = dereg_mr,
      .create_comp_channel = create_comp_channel,
      .destroy_comp_channel = destroy_comp_channel,
      .create_cq = create_cq,
      .destroy_cq = destroy_cq,
      .get_cq_event = get_cq_event,
      .ack_cq_events = ack_cq_events,
      .create_srq = create_srq,
      .modify_srq = modify_srq,
      .query_srq = query_srq,
      .destroy_srq = destroy_srq,
      .create_qp = create_qp,
      .modify_qp = modify_qp,
      .query_qp = query_qp,
      .destroy_qp = destroy_qp,
      .create_ah = create_ah,
      .destroy_ah = destroy_ah,
      .get_async_event = get_async_event,
      .ack_async_event = ack_async_event,
      .last_error = last_error,
      .region_memory = region_memory,
      .shares_pages = true,
  };
  return kControl;
}

Result<ibv_context*> open_device(std::string_view name) {
  Simulation* const simulation = Simulation::current();
  if (simulation == nullptr || simulation->here() == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} exists inside a simulation only; 'verbena bench --device {}' "
                              "makes one",
                              name, name));
  }
  Node& node = *simulation->here();
  uint64_t socket = 0;
  if (const size_t at = name.find(kPortMark); at != std::string_view::npos) {
    const std::string_view number = name.substr(at + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), socket);
    if (error != std::errc() || end != number.data() + number.size() ||
        socket >= node.profile.sockets) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} names no socket of this node; choose {}0 to {}{}", name,
                                kPortMark, kPortMark, node.profile.sockets - 1));
    }
    name = name.substr(0, at);
  }
  if (name.substr(kDevicePrefix.size()) != node.profile.name) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("this simulated node has the RNIC {}{}, not {}", kDevicePrefix,
                              node.profile.name, name));
  }
  auto* context = new Context;
  context->node = &node;
  context->socket = static_cast<uint32_t>(socket);
  context->registers.resize(node.profile.doorbell_registers);
  for (uint64_t i = 0; i < node.profile.dedicated_registers; ++i) {
    context->registers[i].dedicated = true;
  }
  ibv_context& verbs = context->verbs;
  verbs.device = device_of(std::string(name));
  verbs.cmd_fd = -1;
  verbs.async_fd = -1;
  verbs.num_comp_vectors = 1;
  verbs.ops.poll_cq = poll_cq;
  verbs.ops.req_notify_cq = req_notify_cq;
  verbs.ops.post_send = post_send;
  verbs.ops.post_recv = post_recv;
  verbs.ops.post_srq_recv = post_srq_recv;
  return &verbs;
}

bool wait_for_event(ibv_comp_channel* verbs, int64_t timeout_ns) {
  Channel& channel = as_channel(verbs);
  Simulation& simulation = *Simulation::current();
  const uint64_t deadline_ns =
      timeout_ns < 0 ? UINT64_MAX : simulation.now_ns() + static_cast<uint64_t>(timeout_ns);
  while (channel.events.empty()) {
    if (!simulation.wait_at(&channel, deadline_ns)) return !channel.events.empty();
  }
  return true;
}

int close_device(ibv_context* context) {
  delete &as_context(context);
  return 0;
}

}  // namespace verbena::sim

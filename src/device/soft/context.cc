// The device and its contexts: discovery, opening, capabilities, asynchronous events.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "src/base/log.h"
#include "src/device/last_error.h"
#include "src/device/soft/atomic_write.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/faults/faults.h"
#include "src/device/soft/layers/layers.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/soft_rnic.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

LastError last_error_line;

// An identifier of those that everybody may give himself (OUI with the local bit): "Vrb".
constexpr uint32_t kVendorId = 0x567262;

}  // namespace

int fail(int error, std::string_view message) {
  last_error_line.set(message);
  errno = error;
  return error;
}

int fail(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return fail(EINVAL, status.message());
    case StatusCode::kLimitExceeded:
      return fail(ENOMEM, status.message());
    case StatusCode::kPermissionDenied:
      return fail(EACCES, status.message());
    case StatusCode::kUnsupported:
      return fail(EOPNOTSUPP, status.message());
    case StatusCode::kNotFound:
    case StatusCode::kUnavailable:
      return fail(ENOENT, status.message());
    default:
      return fail(EIO, status.message());
  }
}

const char* last_error() { return last_error_line.text(); }

ibv_context* open_device(ibv_device* opened) {
  const Result<std::shared_ptr<faults::Network>> network = faults::network_from_environment();
  if (!network.ok()) {
    fail(network.status());
    return nullptr;
  }
  const Result<LinkLayer> link_layer = link_layer_from_environment();
  if (!link_layer.ok()) {
    fail(link_layer.status());
    return nullptr;
  }
  if (const Result<uint32_t> count = soft_devices_from_environment(); !count.ok()) {
    fail(count.status());
    return nullptr;
  }
  Result<Rnic*> rnic = Rnic::get();
  if (!rnic.ok()) {
    fail(rnic.status());
    return nullptr;
  }
  if (*network != nullptr) {
    // Nobody else may be there to carry out what is on its way.
    if (const Status started = faults::start(); !started.ok()) {
      fail(started);
      return nullptr;
    }
  }
  int event_pipe[2];
  if (pipe2(event_pipe, O_CLOEXEC) != 0) {
    fail(errno,
         fmt::format("soft0: cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                     strerror(errno)));
    return nullptr;
  }
  fcntl(event_pipe[1], F_SETFL, O_NONBLOCK);
  // Another open file, since O_NONBLOCK of async_fd is the program's to set.
  const int take_fd = open(fmt::format("/proc/self/fd/{}", event_pipe[0]).c_str(),
                           O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (take_fd < 0) {
    fail(errno, fmt::format("soft0: cannot open a pipe: {}; raise the limit of open files (ulimit "
                            "-n), and check that /proc is mounted",
                            strerror(errno)));
    close(event_pipe[0]);
    close(event_pipe[1]);
    return nullptr;
  }
  auto* context = new Context;
  context->rnic = *rnic;
  context->network = *network;
  context->opened_in_network = *network != nullptr;
  context->link_layer = *link_layer;
  context->device_index = device_index(opened).value_or(0);
  context->event_read_fd = event_pipe[0];
  context->event_write_fd = event_pipe[1];
  context->event_take_fd = take_fd;
  extend(context->verbs);
  ibv_context& verbs = context->verbs.context;
  verbs.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs.device = opened;
  verbs.cmd_fd = -1;
  verbs.async_fd = event_pipe[0];
  verbs.num_comp_vectors = 1;
  verbs.ops.poll_cq = poll_cq;
  verbs.ops.req_notify_cq = req_notify_cq;
  verbs.ops.post_send = post_send;
  verbs.ops.post_recv = post_recv;
  verbs.ops.post_srq_recv = post_srq_recv;
  make_valid(*context, &verbs);
  add_layers(verbs);
  return &verbs;
}

int close_device(ibv_context* verbs) {
  last_error_line.clear();
  if (const int error = check_valid_context(verbs); error != 0) return error;
  auto* context = &as_context(verbs);
  if (context->closed.exchange(true)) return fail(EINVAL, "soft0: the context is closed already");
  if (const uint32_t users = context->users.load(); users != 0) {
    // As libibverbs, which does not refuse it: programs (perftest, for one) forget objects. These
    // stay until they are destroyed or the process ends, and the context with them.
    log_info(
        "soft0: a context was closed while it had {} protection domains, completion channels and "
        "completion queues, which stay until they are destroyed or the process ends",
        users);
    return 0;
  }
  close(context->event_read_fd);
  close(context->event_write_fd);
  close(context->event_take_fd);
  retire(context, [in_network = context->opened_in_network](Context& shell) {
    shell.opened_in_network = in_network;
  });
  return 0;
}

int query_device(ibv_context* context, ibv_device_attr* attributes) {
  const uint32_t index = context != nullptr ? device_index(context) : 0;
  *attributes = {};
  strcpy(attributes->fw_ver, "verbena");
  attributes->node_guid = node_guid(index);
  attributes->sys_image_guid = node_guid(0);  // one system
  attributes->max_mr_size = kMaxRegionBytes;
  attributes->page_size_cap = ~0xfffull;
  attributes->max_qp = kMaxQueuePairs;
  attributes->max_qp_wr = kMaxQueueWrs;
  attributes->vendor_id = kVendorId;
  attributes->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID |
                                 IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                                 IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_XRC;
  attributes->max_ah = kMaxAddressHandles;
  attributes->max_mcast_grp = kMaxMulticastGroups;
  attributes->max_mcast_qp_attach = kMaxGroupMembers;
  attributes->max_total_mcast_qp_attach = kMaxGroupMembers;
  attributes->max_sge = kMaxSges;
  attributes->max_sge_rd = kMaxSges;
  attributes->max_cq = kMaxCompletionQueues;
  attributes->max_cqe = kMaxCqes;
  attributes->max_mr = kMaxMemoryRegions - 1;
  attributes->max_mw = kMaxMemoryRegions - 1;  // all that there can be of both
  attributes->max_pd = kMaxDomains;
  attributes->max_qp_rd_atom = kMaxOutstandingReads;
  attributes->max_res_rd_atom = kMaxOutstandingReads * kMaxQueuePairs;
  attributes->max_qp_init_rd_atom = kMaxOutstandingReads;
  // They are those of the CPU, thus more than this says, but programs (UCX) ask for exactly this.
  attributes->atomic_cap = IBV_ATOMIC_HCA;
  attributes->max_srq = kMaxSharedReceiveQueues;
  attributes->max_srq_wr = kMaxQueueWrs;
  attributes->max_srq_sge = kMaxSges;
  attributes->max_pkeys = 1;
  attributes->phys_port_cnt = 1;
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*,
                    ibv_device_attr_ex* attributes, size_t size_bytes) {
  // Callers may have a shorter or a longer structure.
  ibv_device_attr_ex full{};
  query_device(context, &full.orig_attr);
  full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
  if (kAtomicWriteOperation != 0) full.device_cap_flags_ex |= kAtomicWriteCapability;
  full.odp_caps.general_caps = uint64_t{IBV_ODP_SUPPORT} | IBV_ODP_SUPPORT_IMPLICIT;
  full.odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                                 IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
                                                 IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
  full.odp_caps.per_transport_caps.uc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                                 IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV;
  full.odp_caps.per_transport_caps.ud_odp_caps =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  full.xrc_odp_caps = full.odp_caps.per_transport_caps.rc_odp_caps;
  full.completion_timestamp_mask = ~uint64_t{0};
  full.hca_core_clock = kCoreClockKhz;
  full.max_dm_size = kMaxDeviceMemoryBytes;
  full.pci_atomic_caps = {.fetch_add = IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP,
                          .swap = 0,
                          .compare_swap = IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP};
  full.phys_port_cnt_ex = full.orig_attr.phys_port_cnt;
  memset(static_cast<void*>(attributes), 0, size_bytes);
  memcpy(static_cast<void*>(attributes), &full, std::min(size_bytes, sizeof(full)));
  return 0;
}

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  if (const int error = check_valid_context(context); error != 0) return error;
  if (port != 1)
    return fail(EINVAL, fmt::format("soft0: has port 1 only, asked for port {}", port));
  *attributes = describe_port(device_index(context), link_layer_of(context));
  return 0;
}

int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  if (const int error = check_valid_context(context); error != 0) return error;
  ibv_gid_entry entry;
  if (port != 1 || index < 0 ||
      !describe_gid(device_index(context), link_layer_of(context), static_cast<uint32_t>(index),
                    &entry)) {
    return fail(EINVAL, fmt::format("soft0: has no GID of index {} and port {}", index, port));
  }
  *gid = entry.gid;
  return 0;
}

namespace {

// Hands `raised` out: counts it at its object, whose destruction waits until it is acknowledged.
void deliver(const AsyncEvent& raised, ibv_async_event& event) {
  event.event_type = raised.type;
  switch (raised.type) {
    case IBV_EVENT_CQ_ERR:
      event.element.cq = static_cast<ibv_cq*>(raised.object);
      as_cq(event.element.cq).async_events.deliver();
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      event.element.srq = static_cast<ibv_srq*>(raised.object);
      as_srq(event.element.srq).events.deliver();
      break;
    default:
      event.element.qp = static_cast<ibv_qp*>(raised.object);
      as_qp(event.element.qp).events.deliver();
      break;
  }
}

// No event is left: nobody is to be woken.
void drain(const Context& context) {
  char bytes[64];
  while (read(context.event_take_fd, bytes, sizeof(bytes)) > 0) {
  }
}

}  // namespace

int get_async_event(ibv_context* verbs, ibv_async_event* event) {
  if (check_valid_context(verbs) != 0) return -1;
  Context& context = as_context(verbs);
  const bool may_wait = (fcntl(context.event_read_fd, F_GETFL) & O_NONBLOCK) == 0;
  for (;;) {
    // Each event has a byte in the pipe. As programs know it of the kernel, a signal interrupts the
    // wait, or it begins again, by what the program asked for with the signal's handler.
    char byte = 0;
    if (may_wait && read(context.event_read_fd, &byte, 1) != 1) return -1;
    // Taken and counted in one step for those who destroy the object, see drop_events_of().
    bool got = false;
    {
      const std::lock_guard guard(context.events_mutex);
      got = !context.events.empty();
      if (got) {
        deliver(context.events.front(), *event);
        context.events.pop_front();
      }
      if (context.events.empty()) drain(context);
    }
    if (got) return 0;
    if (may_wait) continue;  // somebody else took it, or it was none
    errno = EAGAIN;
    return -1;
  }
}

void ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      if (check_valid<Cq>(event->element.cq) != 0) return;
      as_cq(event->element.cq).async_events.acknowledge(1);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      if (check_valid<Srq>(event->element.srq) != 0) return;
      as_srq(event->element.srq).events.acknowledge(1);
      break;
    default:
      if (check_valid<Qp>(event->element.qp) != 0) return;
      as_qp(event->element.qp).events.acknowledge(1);
      break;
  }
}

void drop_events_of(ibv_context* verbs, const void* object) {
  // Under the mutex nobody else takes events: each is either dropped here or was delivered and
  // counted.
  Context& context = as_context(verbs);
  const std::lock_guard guard(context.events_mutex);
  std::erase_if(context.events,
                [object](const AsyncEvent& event) { return event.object == object; });
  if (context.events.empty()) drain(context);
}

namespace {

// last_error() is about the latest call: one that succeeds, or fails without a line of its own,
// must not leave an older call's line for whoever asks next.
template <auto kCall>
constexpr auto kForgetting = [](auto... arguments) {
  last_error_line.clear();
  return kCall(arguments...);
};

}  // namespace

const DatagramVerbs& datagram_verbs() {
  static const DatagramVerbs table = {
      .create_ah = kForgetting<create_ah>,
      .destroy_ah = kForgetting<destroy_ah>,
      .init_ah_from_wc = kForgetting<init_ah_from_wc>,
      .attach_mcast = kForgetting<attach_mcast>,
      .detach_mcast = kForgetting<detach_mcast>,
  };
  return table;
}

const VerbsControl& control() {
  static const VerbsControl table = {
      .query_device = kForgetting<query_device>,
      .query_port = kForgetting<query_port>,
      .query_gid = kForgetting<query_gid>,
      .alloc_pd = kForgetting<alloc_pd>,
      .dealloc_pd = kForgetting<dealloc_pd>,
      .reg_mr = kForgetting<reg_mr>,
      .dereg_mr = kForgetting<dereg_mr>,
      .create_comp_channel = kForgetting<create_comp_channel>,
      .destroy_comp_channel = kForgetting<destroy_comp_channel>,
      .create_cq = kForgetting<create_cq>,
      .destroy_cq = kForgetting<destroy_cq>,
      .get_cq_event = kForgetting<get_cq_event>,
      .ack_cq_events = kForgetting<ack_cq_events>,
      .create_srq = kForgetting<create_srq>,
      .modify_srq = kForgetting<modify_srq>,
      .query_srq = kForgetting<query_srq>,
      .destroy_srq = kForgetting<destroy_srq>,
      .create_qp = kForgetting<create_qp>,
      .modify_qp = kForgetting<modify_qp>,
      .query_qp = kForgetting<query_qp>,
      .destroy_qp = kForgetting<destroy_qp>,
      .create_ah = kForgetting<create_ah>,
      .destroy_ah = kForgetting<destroy_ah>,
      .get_async_event = kForgetting<get_async_event>,
      .ack_async_event = kForgetting<ack_async_event>,
      .last_error = last_error,
      .region_memory = region_memory,
      .reg_mr_in_place = kForgetting<reg_mr_in_place>,
      .reg_mr_unasked = kForgetting<reg_mr_unasked>,
      .write_now = write_now_of,
  };
  return table;
}

}  // namespace verbena::soft

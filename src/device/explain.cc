#include "src/device/explain.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "src/base/log.h"
#include "src/device/probe.h"

namespace verbena {

namespace {

constexpr int kCapabilityIpcLock = 14;  // linux/capability.h

// "Name: asked 300000, the device has 16384"; empty if it fits.
std::string exceeded(std::string_view name, uint64_t asked, int64_t limit) {
  if (limit < 0 || asked <= static_cast<uint64_t>(limit)) return {};
  return fmt::format("{}: asked for {}, the device has {}", name, asked, limit);
}

std::string first_of(std::initializer_list<std::string> candidates) {
  for (const std::string& candidate : candidates) {
    if (!candidate.empty()) return candidate;
  }
  return {};
}

// Devices that explain themselves know better than a comparison of limits.
bool explains_itself(const VerbsControl& control) { return *control.last_error() != '\0'; }

// The value of "Name:   123 kB" or "Name:  00ff" in /proc/self/status.
std::string process_status_field(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.size() > name.size() && line.compare(0, name.size(), name) == 0 &&
        line[name.size()] == ':') {
      std::istringstream value(line.substr(name.size() + 1));
      std::string word;
      value >> word;
      return word;
    }
  }
  return {};
}

}  // namespace

StatusCode status_code_of_errno(int error) {
  switch (error) {
    case EINVAL:
    case EFAULT:
    case ERANGE:
    case E2BIG:
      return StatusCode::kInvalidArgument;
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return StatusCode::kNotFound;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EDQUOT:
      return StatusCode::kLimitExceeded;
    case EPERM:
    case EACCES:
      return StatusCode::kPermissionDenied;
    case EIO:
    case EBUSY:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
      return StatusCode::kUnavailable;
    case ETIMEDOUT:
      return StatusCode::kTimeout;
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
      return StatusCode::kUnsupported;
    default:
      return StatusCode::kInternal;
  }
}

Status verbs_error(const VerbsControl& control, std::string_view what, int error) {
  const char* explanation = control.last_error();
  return {status_code_of_errno(error),
          fmt::format("{}: {}", what, *explanation != '\0' ? explanation : std::strerror(error))};
}

namespace internal {
int destroy_object(ibv_pd* object, const VerbsControl& control) {
  return control.dealloc_pd(object);
}
int destroy_object(ibv_mr* object, const VerbsControl& control) { return control.dereg_mr(object); }
int destroy_object(ibv_comp_channel* object, const VerbsControl& control) {
  return control.destroy_comp_channel(object);
}
int destroy_object(ibv_cq* object, const VerbsControl& control) {
  return control.destroy_cq(object);
}
int destroy_object(ibv_srq* object, const VerbsControl& control) {
  return control.destroy_srq(object);
}
int destroy_object(ibv_qp* object, const VerbsControl& control) {
  return control.destroy_qp(object);
}
int destroy_object(ibv_ah* object, const VerbsControl& control) {
  return control.destroy_ah(object);
}
}  // namespace internal

void internal::log_not_destroyed(const char* kind, const VerbsControl& control, int error) {
  if (error == EPERM) return;  // a forked child leaves what is its parent's
  log_warning("{}",
              verbs_error(control, fmt::format("a {} was not destroyed", kind), error).message());
}

Status explain_open_error(const ibv_device& device, int error) {
  const std::string node = fmt::format("/dev/infiniband/{}", device.dev_name);
  if (access(node.c_str(), F_OK) != 0) {
    return {StatusCode::kNotFound,
            fmt::format("cannot open {}: {} is missing; load the module ib_uverbs, or pass the "
                        "device into the container (--device {})",
                        device.name, node, node)};
  }
  if (error == EPERM || error == EACCES || access(node.c_str(), R_OK | W_OK) != 0) {
    return {StatusCode::kPermissionDenied,
            fmt::format("cannot open {}: no permission for {}; join its group (ls -l {}) or let an "
                        "udev rule set MODE=\"0666\"",
                        device.name, node, node)};
  }
  return {status_code_of_errno(error),
          fmt::format("cannot open {}: {}", device.name, std::strerror(error))};
}

Status explain_unlisted_device(std::string_view name, std::string_view known,
                               const std::string& sysfs) {
  std::string what = fmt::format("there is no RDMA device '{}'; this machine has: {}", name, known);
  std::error_code none;
  const bool plain = !name.empty() && name.find('/') == std::string_view::npos;
  if (!plain ||
      !std::filesystem::exists(fmt::format("{}/class/infiniband/{}", sysfs, name), none)) {
    return {StatusCode::kNotFound, std::move(what)};
  }
  // libibverbs leaves out what it cannot open.
  what = fmt::format("the kernel has the RDMA device {}, but programs cannot use it: ", name);
  const std::string verbs = sysfs + "/class/infiniband_verbs";
  for (const auto& entry : std::filesystem::directory_iterator(verbs, none)) {
    std::string device;
    std::ifstream(entry.path() / "ibdev") >> device;
    if (device != name) continue;
    const std::string node = "/dev/infiniband/" + entry.path().filename().string();
    if (access(node.c_str(), F_OK) != 0) {
      return {StatusCode::kNotFound,
              fmt::format("{}{} is missing; pass the device into the container (--device {})", what,
                          node, node)};
    }
    return {StatusCode::kNotFound,
            what + "libibverbs has no driver for it; install the package ibverbs-providers"};
  }
  return {StatusCode::kNotFound, what + "load the module ib_uverbs"};
}

Status check_transport(const ibv_device& device) {
  if (device.transport_type != IBV_TRANSPORT_IWARP) return {};
  return {StatusCode::kUnsupported,
          fmt::format("{} is an iWARP device: those have no immediate data, and connect queue "
                      "pairs by the RDMA connection manager only; use InfiniBand, RoCE or "
                      "soft-RoCE (rdma link add rxe0 type rxe netdev ...)",
                      device.name)};
}

LockedMemory locked_memory() {
  LockedMemory memory;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory.limit_bytes = limit.rlim_cur;
  } else {
    memory.unlimited = true;
  }
  const uint64_t capabilities = std::strtoull(process_status_field("CapEff").c_str(), nullptr, 16);
  if ((capabilities >> kCapabilityIpcLock & 1) != 0) memory.unlimited = true;
  memory.pinned_bytes = 1024 * std::strtoull(process_status_field("VmPin").c_str(), nullptr, 10);
  return memory;
}

std::string explain_locked_memory(const LockedMemory& memory, uint64_t length_bytes) {
  if (memory.unlimited) return {};
  if (memory.pinned_bytes <= memory.limit_bytes &&
      length_bytes <= memory.limit_bytes - memory.pinned_bytes) {
    return {};
  }
  return fmt::format(
      "the locked-memory limit is {} bytes and {} are pinned already; raise it (ulimit -l "
      "unlimited, or a memlock line in /etc/security/limits.conf) or register less",
      memory.limit_bytes, memory.pinned_bytes);
}

Status explain_registration_error(const ProtectionDomain& domain, uint64_t length_bytes,
                                  unsigned access, int error) {
  const VerbsControl& control = domain.control();
  const std::string what = fmt::format("cannot register {} bytes", length_bytes);
  if (explains_itself(control)) return verbs_error(control, what, error);

  constexpr unsigned kNeedLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & kNeedLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return {StatusCode::kInvalidArgument,
            what + ": remote write or atomic access needs IBV_ACCESS_LOCAL_WRITE too"};
  }
  ibv_device_attr device{};
  if (control.query_device(domain.get()->context, &device) == 0 &&
      length_bytes > device.max_mr_size) {
    return {StatusCode::kLimitExceeded,
            fmt::format("{}: the device registers at most {} bytes at once; split the region", what,
                        device.max_mr_size)};
  }
  if (error == ENOMEM || error == EPERM || error == EAGAIN) {
    const std::string limit = explain_locked_memory(locked_memory(), length_bytes);
    if (!limit.empty()) return {StatusCode::kLimitExceeded, what + ": " + limit};
  }
  if (error == ENOMEM) {
    return {StatusCode::kLimitExceeded,
            fmt::format("{}: out of memory, or all {} memory regions of the device are in use; "
                        "register fewer, larger regions",
                        what, device.max_mr)};
  }
  if (error == EFAULT) {
    return {StatusCode::kInvalidArgument,
            what + ": not all of it is mapped memory that this process may access that way"};
  }
  return verbs_error(control, what, error);
}

Status explain_completion_queue_error(const Device& device, const CompletionQueueOptions& options,
                                      int error) {
  const VerbsControl& control = device.control();
  const std::string what =
      fmt::format("cannot create a completion queue of {} CQEs", options.depth_cqes);
  if (explains_itself(control)) return verbs_error(control, what, error);
  const DeviceInfo& info = device.info();
  const std::string limit = exceeded("CQEs", options.depth_cqes, info.max_cqes);
  if (!limit.empty()) return {StatusCode::kLimitExceeded, what + ": " + limit};
  if (error == ENOMEM) {
    return {StatusCode::kLimitExceeded,
            fmt::format("{}: out of memory, or all {} completion queues of the device are in use",
                        what, info.max_completion_queues)};
  }
  return verbs_error(control, what, error);
}

Status explain_shared_receive_queue_error(const ProtectionDomain& domain,
                                          const SharedReceiveQueueOptions& options, int error) {
  const VerbsControl& control = domain.control();
  const std::string what =
      fmt::format("cannot create a shared receive queue of {} work requests", options.depth_wrs);
  if (explains_itself(control)) return verbs_error(control, what, error);
  ibv_device_attr device{};
  if (control.query_device(domain.get()->context, &device) != 0) {
    return verbs_error(control, what, error);
  }
  if (device.max_srq == 0) {
    return {StatusCode::kUnsupported, what + ": the device has no shared receive queues"};
  }
  const std::string limit =
      first_of({exceeded("work requests", options.depth_wrs, device.max_srq_wr),
                exceeded("SGEs of a receive", options.max_sges, device.max_srq_sge)});
  if (!limit.empty()) return {StatusCode::kLimitExceeded, what + ": " + limit};
  if (error == ENOMEM) {
    return {
        StatusCode::kLimitExceeded,
        fmt::format("{}: out of memory, or all {} shared receive queues of the device are in use",
                    what, device.max_srq)};
  }
  return verbs_error(control, what, error);
}

Status explain_queue_pair_error(const ProtectionDomain& domain, const QueuePairOptions& options,
                                int error) {
  const VerbsControl& control = domain.control();
  const std::string what = "cannot create a queue pair";
  if (explains_itself(control)) return verbs_error(control, what, error);
  ibv_device_attr device{};
  if (control.query_device(domain.get()->context, &device) != 0) {
    return verbs_error(control, what, error);
  }
  const bool own_receives = options.shared_receive_queue == nullptr;
  const std::string limit = first_of(
      {exceeded("send queue depth", options.send_depth_wrs, device.max_qp_wr),
       exceeded("receive queue depth", own_receives ? options.recv_depth_wrs : 0, device.max_qp_wr),
       exceeded("SGEs of a send", options.max_send_sges, device.max_sge),
       exceeded("SGEs of a receive", own_receives ? options.max_recv_sges : 0, device.max_sge)});
  if (!limit.empty()) return {StatusCode::kLimitExceeded, what + ": " + limit};
  if (options.max_inline_bytes > 0) {
    const Result<QueuePairProbe> probe = probe_queue_pair(domain);
    if (probe.ok() && options.max_inline_bytes > probe->max_inline_bytes) {
      return {StatusCode::kLimitExceeded,
              fmt::format("{}: {}", what,
                          exceeded("inline bytes", options.max_inline_bytes,
                                   static_cast<int64_t>(probe->max_inline_bytes)))};
    }
  }
  if (options.transport != Transport::kRc && (error == EOPNOTSUPP || error == ENOSYS)) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: {} has none of type {}; use Transport::kRc", what,
                        domain.get()->context->device->name,
                        options.transport == Transport::kUc ? "UC" : "UD")};
  }
  if (error == ENOMEM || error == EINVAL) {
    return {
        StatusCode::kLimitExceeded,
        fmt::format("{}: {} sends with {} SGEs and {} inline bytes are together more than the "
                    "device takes, memory is short, or all its {} queue pairs are in use; ask for "
                    "less",
                    what, options.send_depth_wrs, options.max_send_sges, options.max_inline_bytes,
                    device.max_qp)};
  }
  return verbs_error(control, what, error);
}

std::string explain_completion_error(ibv_wc_status status) {
  const char* cause = "";
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      cause =
          "a received message is longer than its receive buffers, or a sent one than the device's "
          "largest message; post larger receives";
      break;
    case IBV_WC_LOC_QP_OP_ERR:
      cause =
          "the queue pair found an error in this work request or in itself, such as more "
          "outstanding reads than were agreed";
      break;
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
      cause = "an error of reliable datagrams, which no queue pair here uses";
      break;
    case IBV_WC_LOC_PROT_ERR:
      cause =
          "a local buffer is not inside a memory region of this protection domain, its lkey is "
          "stale, or the region lacks IBV_ACCESS_LOCAL_WRITE";
      break;
    case IBV_WC_WR_FLUSH_ERR:
      cause =
          "the queue pair was in the error state when this request's turn came; the first error "
          "completion of the queue pair names the cause";
      break;
    case IBV_WC_MW_BIND_ERR:
      cause = "binding a memory window failed; the region needs IBV_ACCESS_MW_BIND";
      break;
    case IBV_WC_BAD_RESP_ERR:
      cause = "the peer answered with a packet that does not fit the request";
      break;
    case IBV_WC_LOC_ACCESS_ERR:
      cause = "an incoming WRITE with immediate met a protection error on this side";
      break;
    case IBV_WC_REM_INV_REQ_ERR:
      cause =
          "the peer refused the request: its receive buffer is too small, the operation is not "
          "enabled on its queue pair, or more reads were in flight than it accepts";
      break;
    case IBV_WC_REM_ACCESS_ERR:
      cause =
          "the peer refused the memory access: wrong or stale rkey, an address outside the region, "
          "or remote access not granted by the region or the queue pair";
      break;
    case IBV_WC_REM_OP_ERR:
      cause = "the peer could not complete the request; its own completion or log names the cause";
      break;
    case IBV_WC_RETRY_EXC_ERR:
      cause =
          "the peer did not answer within the acknowledge timeout and all retries: it died, its "
          "queue pair is not connected, or the path (GID, MTU, cable) is wrong";
      break;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      cause =
          "the peer had no receive posted through all RNR retries; post receives earlier, or set "
          "rnr_retry_count to 7 (without end); min_rnr_timer is encoded, and 0 is its longest "
          "value (655 ms), not its shortest (1: 0.01 ms)";
      break;
    case IBV_WC_REM_ABORT_ERR:
      cause = "the peer aborted the operation";
      break;
    case IBV_WC_FATAL_ERR:
      cause = "the device failed; reopen it";
      break;
    case IBV_WC_RESP_TIMEOUT_ERR:
      cause = "the peer did not answer the request in time";
      break;
    default:
      cause = "see the device's log";
      break;
  }
  return fmt::format("{}: {}", ibv_wc_status_str(status), cause);
}

}  // namespace verbena

// Devices and their objects: the owners of what libibverbs hands out as raw pointers.
//
// A Device is an RNIC (through the installed libibverbs) or Verbena's software RNIC `soft0`. Its
// objects are verbs objects: get() is the ibv_ pointer, and work is posted and completed with
// ibv_post_send, ibv_poll_cq and so on, the same on every device. These classes only own: they
// make, destroy and explain failures.
//
//   auto device = verbena::Device::open("soft0");
//   auto pd = verbena::ProtectionDomain::create(*device);
//   auto cq = verbena::CompletionQueue::create(*device, {.depth_cqes = 64});
//   auto qp = verbena::QueuePair::create(*pd, {.send_cq = &*cq, .recv_cq = &*cq});
//   auto mr = verbena::MemoryRegion::create(*pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE);
//
// Ownership: each object owns its verbs object and must be destroyed before the object it was made
// from. Moving is allowed, copying is not. Threading: objects may be used from any thread; making
// and destroying one object is not synchronized with its own use. Cost: every call here is control
// path (may allocate, lock and enter the kernel).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verbena/status.h"

namespace verbena {

struct FaultPlan;
struct VerbsControl;

enum class DeviceKind { kHardware, kSoft, kSimulated };

// What a device can do, as far as it decides between designs. All limits are asked of the device,
// none is assumed.
struct DeviceInfo {
  std::string name;
  DeviceKind kind = DeviceKind::kHardware;
  std::string link_layer;  // "InfiniBand", "Ethernet" or "unspecified"
  std::string port_state;  // "active", "down", ...
  uint32_t max_queue_pairs = 0;
  uint32_t max_queue_pair_wrs = 0;
  uint32_t max_completion_queues = 0;
  uint32_t max_cqes = 0;
  uint32_t max_shared_receive_queues = 0;
  uint32_t max_shared_receive_queue_wrs = 0;
  uint32_t max_memory_regions = 0;
  uint64_t max_memory_region_bytes = 0;
  uint32_t max_sges = 0;
  uint32_t max_inline_bytes = 0;  // largest inline send of a reliable queue pair; found by trying
  uint32_t max_outstanding_reads = 0;
  uint32_t active_mtu_bytes = 0;
  bool atomics = false;          // compare-and-swap and fetch-and-add on 8 bytes
  bool writes_in_order = false;  // the last byte of a WRITE is guaranteed to land last
  uint8_t port = 1;    // the first active port, else port 1; queue pairs are connected over it
  int gid_index = -1;  // entry of the GID table that connections use; -1: none needed
  uint16_t lid = 0;
  std::string unavailable;  // why the device cannot be opened here; empty if it can
};

class Device {
 public:
  // Real devices first, then the software device. A device that cannot be opened is listed with the
  // reason.
  static std::vector<DeviceInfo> list();

  // Opens a device by name. kNotFound names the devices there are. Where VERBENA_FAULTS is set, the
  // device has its faults (fault.h); kInvalidArgument if it makes no sense.
  static Result<Device> open(std::string_view name);
  // The same with faults of the caller's choice, whatever the environment says.
  static Result<Device> open(std::string_view name, const FaultPlan& faults);

  const DeviceInfo& info() const { return info_; }
  ibv_context* get() const { return context_.get(); }
  const VerbsControl& control() const { return *control_; }

 private:
  using Close = int (*)(ibv_context*);
  Device(ibv_context* context, Close close, const VerbsControl* control)
      : context_(context, close), control_(control) {}
  static Result<Device> open_without_faults(std::string_view name);
  Status inject(const FaultPlan& faults);
  // Takes over `context` and asks the device for its DeviceInfo.
  static Result<Device> from_context(ibv_context* context, Close close, const VerbsControl* control,
                                     std::string_view name, DeviceKind kind);

  std::unique_ptr<ibv_context, Close> context_;
  const VerbsControl* control_;
  DeviceInfo info_;
};

namespace internal {
// Destroys the object by the entry of `control` for its kind; 0, or an errno value.
int destroy_object(ibv_pd* object, const VerbsControl& control);
int destroy_object(ibv_mr* object, const VerbsControl& control);
int destroy_object(ibv_comp_channel* object, const VerbsControl& control);
int destroy_object(ibv_cq* object, const VerbsControl& control);
int destroy_object(ibv_srq* object, const VerbsControl& control);
int destroy_object(ibv_qp* object, const VerbsControl& control);
int destroy_object(ibv_ah* object, const VerbsControl& control);
// One line in the log: what was not destroyed, and why.
void log_not_destroyed(const char* kind, const VerbsControl& control, int error);

// Owns one verbs object of a device with the given control path. Where the device refuses to
// destroy it (EBUSY: it is in use), the object stays until the process ends, and the log says so.
template <typename Object>
class VerbsHandle {
 public:
  VerbsHandle() = default;
  VerbsHandle(Object* object, const VerbsControl& control) : object_(object), control_(&control) {}
  VerbsHandle(VerbsHandle&& other) noexcept { *this = std::move(other); }
  VerbsHandle& operator=(VerbsHandle&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = std::exchange(other.object_, nullptr);
      control_ = other.control_;
    }
    return *this;
  }
  ~VerbsHandle() { reset(); }

  Object* get() const { return object_; }
  // Also of one that was destroyed, but not without one.
  const VerbsControl& control() const { return *control_; }
  // False: the device refuses, and nothing has changed here.
  bool destroy() {
    if (object_ != nullptr && destroy_object(object_, *control_) != 0) return false;
    object_ = nullptr;
    return true;
  }
  void reset() {
    if (object_ == nullptr) return;
    const int error = destroy_object(std::exchange(object_, nullptr), *control_);
    if (error != 0) log_not_destroyed(name(static_cast<Object*>(nullptr)), *control_, error);
  }

 private:
  static const char* name(ibv_pd*) { return "protection domain"; }
  static const char* name(ibv_mr*) { return "memory region"; }
  static const char* name(ibv_comp_channel*) { return "completion channel"; }
  static const char* name(ibv_cq*) { return "completion queue"; }
  static const char* name(ibv_srq*) { return "shared receive queue"; }
  static const char* name(ibv_qp*) { return "queue pair"; }
  static const char* name(ibv_ah*) { return "address handle"; }

  Object* object_ = nullptr;
  const VerbsControl* control_ = nullptr;
};
}  // namespace internal

class ProtectionDomain {
 public:
  static Result<ProtectionDomain> create(const Device& device);
  ibv_pd* get() const { return handle_.get(); }
  const VerbsControl& control() const { return handle_.control(); }

 private:
  explicit ProtectionDomain(internal::VerbsHandle<ibv_pd> handle) : handle_(std::move(handle)) {}
  internal::VerbsHandle<ibv_pd> handle_;
};

// Registered memory. The memory stays the caller's and must outlive the registration.
class MemoryRegion {
 public:
  // `access` is a set of ibv_access_flags. Cost: tens of microseconds plus the pages; keep it off
  // the data path. kLimitExceeded where the locked-memory limit (ulimit -l) is the cause, with both
  // numbers.
  static Result<MemoryRegion> create(const ProtectionDomain& domain, void* address,
                                     uint64_t length_bytes, unsigned access);
  // As create(), of memory that may be used too little for that to pay, with IBV_ACCESS_REMOTE_READ
  // or IBV_ACCESS_LOCAL_WRITE alone: soft0 leaves the pages in place, which takes microseconds
  // whatever the length, and each READ by a peer then costs more (docs/architecture.md). With
  // IBV_ACCESS_LOCAL_WRITE, READs and atomics that are posted on this side fill it, and nothing
  // else: a receive into it fails. Elsewhere the same as create().
  static Result<MemoryRegion> create_in_place(const ProtectionDomain& domain, void* address,
                                              uint64_t length_bytes, unsigned access);
  // As create(), of memory whose owner does not know that it is registered, as in a cache: what the
  // owner discards by MADV_DONTNEED is zero afterwards, or the call fails with EINVAL; see
  // docs/architecture.md for what create() does there on soft0. With a low limit of locked memory
  // (ulimit -l), peers reach it through the kernel. Cost: as create().
  static Result<MemoryRegion> create_unasked(const ProtectionDomain& domain, void* address,
                                             uint64_t length_bytes, unsigned access);
  // Deregisters now, where the destructor logs that it cannot. False: a stopped peer is in the
  // middle of an access; the keys are invalid, and another call goes on.
  bool deregister() { return handle_.destroy(); }
  ibv_mr* get() const { return handle_.get(); }
  uint32_t lkey() const { return get()->lkey; }
  uint32_t rkey() const { return get()->rkey; }
  void* address() const { return get()->addr; }
  uint64_t length_bytes() const { return get()->length; }

 private:
  explicit MemoryRegion(internal::VerbsHandle<ibv_mr> handle) : handle_(std::move(handle)) {}
  internal::VerbsHandle<ibv_mr> handle_;
};

// A descriptor that becomes readable when an armed completion queue gets a completion.
class CompletionChannel {
 public:
  static Result<CompletionChannel> create(const Device& device);
  ibv_comp_channel* get() const { return handle_.get(); }
  // Waits for the next event, acknowledges it and returns its completion queue; kTimeout after
  // `timeout_ns` (negative: no limit). Re-arm (ibv_req_notify_cq) and then poll before waiting
  // again. One thread waits at a time.
  Result<ibv_cq*> wait(int64_t timeout_ns);

 private:
  Result<ibv_cq*> take_event();
  explicit CompletionChannel(internal::VerbsHandle<ibv_comp_channel> handle)
      : handle_(std::move(handle)) {}
  internal::VerbsHandle<ibv_comp_channel> handle_;
};

struct CompletionQueueOptions {
  uint32_t depth_cqes = 256;
  const CompletionChannel* channel = nullptr;  // where events go; none: polling only
  void* user_context = nullptr;
};

class CompletionQueue {
 public:
  CompletionQueue() = default;  // none: get() is null
  static Result<CompletionQueue> create(const Device& device,
                                        const CompletionQueueOptions& options);
  ibv_cq* get() const { return handle_.get(); }

 private:
  explicit CompletionQueue(internal::VerbsHandle<ibv_cq> handle) : handle_(std::move(handle)) {}
  internal::VerbsHandle<ibv_cq> handle_;
};

struct SharedReceiveQueueOptions {
  uint32_t depth_wrs = 256;
  uint32_t max_sges = 1;
};

class SharedReceiveQueue {
 public:
  static Result<SharedReceiveQueue> create(const ProtectionDomain& domain,
                                           const SharedReceiveQueueOptions& options);
  ibv_srq* get() const { return handle_.get(); }

 private:
  explicit SharedReceiveQueue(internal::VerbsHandle<ibv_srq> handle) : handle_(std::move(handle)) {}
  internal::VerbsHandle<ibv_srq> handle_;
};

// What a queue pair promises of its messages: the type of the queue pair ("msgproto" 2, table 2).
enum class Transport : uint8_t {
  kRc,  // reliable connection: each arrives, once, in order, or the connection fails
  kUc,  // unreliable connection: lost messages vanish, and the sender does not learn of it
  kUd,  // unreliable datagrams: the same, and a message is at most one packet of the port's MTU
};

struct QueuePairOptions {
  Transport transport = Transport::kRc;
  const CompletionQueue* send_cq = nullptr;  // required
  const CompletionQueue* recv_cq = nullptr;  // required
  const SharedReceiveQueue* shared_receive_queue = nullptr;
  uint32_t send_depth_wrs = 128;
  uint32_t recv_depth_wrs = 128;  // ignored with a shared receive queue
  uint32_t max_send_sges = 1;
  uint32_t max_recv_sges = 1;
  uint32_t max_inline_bytes = 0;  // kUd: as many of these as the device can
  bool signal_all = false;
};

// What a peer must know to connect to a queue pair; plain data, exchanged by the handshake in
// connection.h.
struct QueuePairAddress {
  uint32_t queue_pair_number = 0;
  uint32_t packet_sequence_number = 0;
  uint16_t lid = 0;
  uint8_t gid[16] = {};
  uint8_t has_gid = 0;
  uint8_t mtu = 0;  // ibv_mtu
};

// How a reliable connection behaves when the other side is slow or gone. Encodings are those of the
// InfiniBand specification; the comments give the defaults in time.
struct ReliabilityOptions {
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;  // 7: without end
  uint8_t ack_timeout = 14;     // 4.096 us * 2^14 = 67 ms, and what the device itself needs; 0:
                                // without end. VERBENA_ACK_TIMEOUT in the environment overrides it
  uint8_t min_rnr_timer = 12;   // 0.64 ms; note that 0 is the longest, 655 ms
  uint8_t max_outstanding_reads = 16;
};

// A queue pair of a peer, as a kUd queue pair addresses it. It must outlive the work requests that
// are posted to it, and belongs to the protection domain of the queue pair that made it.
class DatagramPeer {
 public:
  DatagramPeer() = default;

  // Addresses a work request to the peer.
  void set_destination(ibv_send_wr& request) const;
  uint32_t queue_pair_number() const { return number_; }

 private:
  friend class QueuePair;

  internal::VerbsHandle<ibv_ah> handle_;
  uint32_t number_ = 0;
  uint32_t queue_key_ = 0;
};

// A queue pair, connected to one peer; a datagram one (kUd) sends to any number of them.
class QueuePair {
 public:
  static Result<QueuePair> create(const ProtectionDomain& domain, const QueuePairOptions& options);

  ibv_qp* get() const { return handle_.get(); }
  uint32_t number() const { return get()->qp_num; }
  uint32_t max_inline_bytes() const { return max_inline_bytes_; }

  // This queue pair's address on the device's port, for the peer.
  Result<QueuePairAddress> address() const;

  // RESET -> INIT with the given remote access, after which receives may be posted, -> RTR -> RTS
  // towards `peer`. Post the receives that the peer may use first between init() and connect(). The
  // path MTU is the smaller of both sides', reads in flight are cut to what the device can. Both
  // sides must connect before either may send. Options mean something for kRc only, the remote
  // access nothing for kUd.
  Status init(unsigned remote_access);
  Status connect(const QueuePairAddress& peer, const ReliabilityOptions& options = {});
  // kUd, after connect(): addresses a work request to the peer. Others need none.
  void set_destination(ibv_send_wr& request) const {
    if (peer_ != nullptr) peer_->set_destination(request);
  }
  // kUd: what connect() does, apart: INIT -> RTR -> RTS, once, and then a peer at a time. Whoever
  // knows this queue pair's address can send to it, with datagram_peer() here or without.
  Status start_datagrams();
  Result<DatagramPeer> datagram_peer(const QueuePairAddress& address) const;
  // To the error state: outstanding work completes with IBV_WC_WR_FLUSH_ERR.
  Status to_error();

 private:
  QueuePair(internal::VerbsHandle<ibv_qp> handle, Transport transport)
      : handle_(std::move(handle)), transport_(transport) {}
  Status connect_reliable(const QueuePairAddress& peer, const ReliabilityOptions& options,
                          const ibv_ah_attr& path, ibv_mtu mtu);
  Status connect_unreliable(const QueuePairAddress& peer, const ibv_ah_attr& path, ibv_mtu mtu);
  Result<DatagramPeer> datagram_peer(const QueuePairAddress& address, ibv_ah_attr path) const;
  // One step of connecting.
  Status enter(ibv_qp_attr& attributes, int mask, const char* step, const QueuePairAddress& peer,
               const ibv_ah_attr& path);

  std::unique_ptr<DatagramPeer> peer_;  // kUd; the queue pair goes first
  internal::VerbsHandle<ibv_qp> handle_;
  Transport transport_;
  uint32_t max_inline_bytes_ = 0;
  uint32_t local_psn_ = 0;
  uint8_t port_ = 1;
};

// "local protection error" and the like, with what usually causes it and what to do, for a
// completion's status.
std::string explain_completion_error(ibv_wc_status status);

}  // namespace verbena

// Remote memory between machines with several sockets ("memsem" III-D, IV-B, Fig. 9). A back-end
// has a part of its memory on each socket. A front-end's socket i is connected to part i only, and
// what it wants of another part is handed to a thread on the socket that matches that part, the
// proxy, by two queues in shared memory: one for requests, one for results. So no operation
// crosses between sockets on its way into an RNIC, and a process needs s queue pairs to a back-end
// with s sockets, where connecting each socket to all of them would take s * s.
//
//   // The back-end, whose region has 1 GiB on each of two sockets:
//   auto region = expose_sockets({{{&dev0, &pd0}, {&dev1, &pd1}}}, {.size_bytes = 1 << 30});
//   for (...) (*region)->accept(*control);            // for each connection of each front-end
//
//   // A front-end: the proxies, once per process and back-end; a region per thread.
//   auto sockets = connect_sockets({{{&dev0, &pd0}, {&dev1, &pd1}}},
//                                  [&] { return ControlConnection::connect(...); });
//   auto region = (*sockets)->open_region(/*socket=*/1);  // by a thread that runs on socket 1
//   (*region)->write(pointer, value);                     // wherever it lies
//
// A region that is opened so is a RemoteRegion like any other: the parts lie one behind the other,
// and its calls mean what remote.h says. What differs:
// - An operation must lie inside of one part.
// - Order. Operations on one part have the order that remote.h states. Those on different parts
//   begin and happen in any order: take the completion of the first one before the second one is
//   posted. Order::kAfterReads does that for all that was posted before: while operations on other
//   parts are not taken, the post returns kWouldBlock. Completions come in the order in which
//   operations were posted, whatever their parts.
// - Vectors for another part are copied into one buffer and transferred as a whole, whatever the
//   method ("memsem" IV-E): at most options.value_bytes if posted, else options.copy_bytes.
// - A LocalSlice for another part is transferred from where it lies if its memory was registered
//   with the protection domain of that part's socket; else it is copied, and so at most
//   options.value_bytes (copy_bytes for read() and write()).
// - options.signal_interval and post_batch are those of the thread's own connection.
// - When one of the connections breaks, the region has failed for the threads that use that part.
//
// After open_region(), nothing on the way of an operation allocates, locks or enters the kernel
// but to wait. A hand-over costs each side about two cache lines from the other one; the proxy
// polls all the time, so it needs a processor of its own. A region is used by one thread at a
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"
#include "verbena/sockets.h"
#include "verbena/status.h"

namespace verbena {

// What a socket uses: its RNIC, or its port of one. Several sockets may have the same.
struct SocketDevice {
  const Device* device = nullptr;
  const ProtectionDomain* domain = nullptr;
};

// Sockets at most.
inline constexpr uint32_t kMaxRemoteSockets = 64;

// --- the back-end ---

class ExposedSockets {
 public:
  virtual ~ExposedSockets() = default;
  ExposedSockets(const ExposedSockets&) = delete;
  ExposedSockets& operator=(const ExposedSockets&) = delete;

  // Takes in one connection of a front-end, which calls connect_sockets() or open_region() there;
  // as ExposedRegion::accept().
  //   kInvalidArgument  the front-end has another number of sockets: both numbers
  virtual Status accept(ControlConnection& control) = 0;
  virtual uint32_t sockets() const = 0;
  // The part of the region on that socket.
  virtual ExposedRegion& part(uint32_t socket) = 0;

 protected:
  ExposedSockets() = default;
};

// `options` are those of each part: size_bytes on each socket, in memory that the region makes. It
// lies on socket i of the machine if that has as many sockets as there are devices, else on the
// socket of the device.
//   kInvalidArgument  no device, or more than kMaxRemoteSockets; memory, or a socket, in the
//                     options
//   and what expose_region() says
Result<std::unique_ptr<ExposedSockets>> expose_sockets(std::span<const SocketDevice> devices,
                                                       const ExposedRegionOptions& options);

// --- the front-end ---

struct SocketConnectionsOptions {
  // Operations that a proxy has under way, of all threads together, 1 to 4096.
  uint32_t proxy_pending = 64;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct SocketRegionOptions {
  RemoteRegionOptions region = {};
  // Whether the thread has a queue pair to the part that matches its socket. Without, it hands all
  // its operations to proxies: the process then has s queue pairs to a back-end, however many
  // threads.
  bool own_connection = true;
};

// Connects to the back-end: called once for each connection, which ExposedSockets::accept() takes
// at the other end. By several threads at once, if they open regions at once.
using ConnectToBackEnd = std::function<Result<ControlConnection>()>;

// The proxies of a process for one back-end: a thread on each socket with one connection.
class SocketConnections {
 public:
  // Ends the proxies once the last region that was opened here is gone.
  virtual ~SocketConnections() = default;
  SocketConnections(const SocketConnections&) = delete;
  SocketConnections& operator=(const SocketConnections&) = delete;

  // The region as a thread on `socket` accesses it. Any thread may call it. Blocks about 1 ms.
  // Posts are bounded by options.region.pending, over all parts together.
  //   kInvalidArgument  no such socket, or an option out of range
  //   and what open_region() says
  virtual Result<std::unique_ptr<RemoteRegion>> open_region(
      uint32_t socket, const SocketRegionOptions& options = {}) = 0;

  virtual uint32_t sockets() const = 0;
  // Where the part of a socket begins in the region, and how long it is.
  virtual uint64_t offset_bytes(uint32_t socket) const = 0;
  virtual uint64_t size_bytes(uint32_t socket) const = 0;
  // Of this process to this back-end, which has as many to this process.
  virtual uint32_t queue_pairs() const = 0;

 protected:
  SocketConnections() = default;
};

// Connects socket i here to socket i there, and starts a proxy on each. With as many devices as
// the machine has sockets, proxy i runs on socket i. All that is passed must outlive the proxies.
//   kInvalidArgument  no device, more than kMaxRemoteSockets, an option out of range, or the
//                     back-end has another number of sockets: both numbers
//   and what open_region() says
Result<std::unique_ptr<SocketConnections>> connect_sockets(
    std::span<const SocketDevice> devices, ConnectToBackEnd connect,
    const SocketConnectionsOptions& options = {});

}  // namespace verbena

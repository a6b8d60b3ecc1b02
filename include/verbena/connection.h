// Control connections: how a job's processes find each other over TCP before any RDMA connection.
//
// One side listens, the other connects; both must hold the job's secret. Over the connection they
// trade what their queue pairs need (numbers, addresses, keys), and later notice that the other one
// is gone. Nothing here is on the data path.
//
//   // Both, from a file of mode 0600:
//   auto secret = JobSecret::from_file("job.secret");
//
//   // Process A, on node-a:
//   auto listener = ControlListener::listen("0.0.0.0", 7471, *secret);
//   auto connection = listener->accept(10'000'000'000);
//   auto frame = connection->receive(1'000'000'000);
//
//   // Process B:
//   auto connection = ControlConnection::connect("node-a", 7471, *secret, 10'000'000'000);
//   connection->send(bytes);
//
// Connections are TLS 1.3 with a pre-shared key derived from the secret, and with ephemeral keys:
// each side has proved that it has the secret, frames cannot be read, altered, inserted or replayed
// on the way, and a later leak of the secret does not reveal recorded traffic. Visible to others:
// that there is a connection, when, and how much it carries. And a handshake that is recorded, or
// answered in place of a peer, allows guesses of the secret to be tested: see JobSecret.
//
// Time-outs are in nanoseconds; a negative one waits without limit, 0 polls once. No call raises a
// signal, throws, or is ended early by one (EINTR). IPv4 and IPv6, numeric or by name.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "verbena/status.h"

namespace verbena {

// The largest frame of a control connection.
inline constexpr size_t kMaxControlFrameBytes = size_t{1} << 20;
// The version of handshake and frames that this library speaks; both sides need the same.
inline constexpr uint16_t kControlProtocolVersion = 2;

// What the processes of one job share and nobody else knows. Copyable; wiped from memory when
// destroyed.
class JobSecret {
 public:
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 4096;

  // `text` itself is the key, 16 to 4096 bytes. Take what a generator made (`openssl rand -hex
  // 32`), not a pass phrase: who overhears a handshake can try guesses.
  static Result<JobSecret> from_string(std::string_view text);
  // The file's content without its last newline. Refused where others than its owner may read or
  // write it, or where it belongs to somebody else: chmod 600.
  static Result<JobSecret> from_file(const std::string& path);
  // 256 bits from the system's generator, as 64 hexadecimal digits.
  static JobSecret random();

  JobSecret(const JobSecret&);
  JobSecret(JobSecret&&) noexcept;
  JobSecret& operator=(const JobSecret&);
  JobSecret& operator=(JobSecret&&) noexcept;
  ~JobSecret();

  // Makes a new file of mode 0600 that from_file() reads; an existing file is not touched.
  Status write_file(const std::string& path) const;
  // To hand to a child process through its environment or a pipe. Never put it on a command line:
  // others see those.
  const std::string& text() const { return text_; }

 private:
  explicit JobSecret(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// An authenticated, encrypted connection to one peer, carrying frames of up to 1 MiB in order.
// Movable; closed when destroyed, except in a child of fork(), where it is still the parent's and
// must not be used. One thread at a time may use it. An error of send() other than kLimitExceeded,
// or of receive() other than kTimeout, breaks that direction: every further call in it says why.
class ControlConnection {
 public:
  static constexpr int64_t kSendTimeoutNs = 30'000'000'000;

  // What connect() does while nobody listens.
  enum class IfNobodyListens { kTryAgain, kFail };

  // Connects to a listener. While nobody listens there yet, tries again until `timeout_ns` has
  // passed; with kFail, of a listener that was there before, it fails at once. Costs two round
  // trips after TCP's own, and 0.3 ms of CPU time on each side. Looking a name up is left to the
  // system's resolver and its own time-outs.
  //   kNotFound           no such host
  //   kTimeout            nobody listened, or the listener did not answer, in time
  //   kUnavailable        with kFail: nobody listens there, or who did has ended
  //   kPermissionDenied   one side holds another secret
  //   kLimitExceeded      one side's process has no file descriptor left
  //   kProtocolViolation  what listens there is not a Verbena peer, or speaks another version
  static Result<ControlConnection> connect(const std::string& host, uint16_t port,
                                           const JobSecret& secret, int64_t timeout_ns,
                                           IfNobodyListens absent = IfNobodyListens::kTryAgain);

  ControlConnection(ControlConnection&&) noexcept;
  ControlConnection& operator=(ControlConnection&&) noexcept;
  ~ControlConnection();

  // Sends one frame of 0 to kMaxControlFrameBytes bytes, which are encrypted and copied to the
  // kernel before it returns. Blocks while the peer does not read, at most for `timeout_ns`.
  //   kLimitExceeded      the frame is too long; nothing was sent
  //   kTimeout            the peer did not read
  //   kUnavailable        the peer is gone
  Status send(std::span<const std::byte> frame, int64_t timeout_ns = kSendTimeoutNs);
  // The next frame. After kTimeout, call it again: a frame that arrived in part is kept.
  //   kTimeout            no whole frame came in time
  //   kUnavailable        the peer closed the connection, or it broke
  //   kProtocolViolation  what came was altered on the way, or is no frame, or one beyond the limit
  Result<std::vector<std::byte>> receive(int64_t timeout_ns);

  // Ends the connection for both sides without waiting: the peer's peer_closed() becomes true,
  // later calls on either side fail, but frames sent before can still be received. Two system
  // calls.
  void hang_up();

  // Whether the peer is gone: it closed the connection, its process died, or its host did not
  // answer keep-alives for more than five seconds. While frames wait for a peer to read, its host
  // is given the system's own limit instead, 15 to 30 minutes (net.ipv4.tcp_retries2): how late a
  // living peer reads does not matter. Frames that it sent before can still be received. One system
  // call, while frames wait up to three; never blocks: for a polling loop to call now and then.
  bool peer_closed() const;

  // Sends `value` with `type`, a number that names its type in this exchange.
  template <typename T>
  Status send_value(uint32_t type, const T& value, int64_t timeout_ns = kSendTimeoutNs) {
    check_exchangeable<T>();
    return send_typed(type, &value, sizeof(T), timeout_ns);
  }
  // Receives what the peer's send_value() sent. Another type or size is kProtocolViolation.
  template <typename T>
  Result<T> receive_value(uint32_t type, int64_t timeout_ns) {
    check_exchangeable<T>();
    T value{};
    Status status = receive_typed(type, &value, sizeof(T), timeout_ns);
    if (!status.ok()) return status;
    return value;
  }
  // Both sides call it: sends `mine` and returns the peer's.
  template <typename T>
  Result<T> exchange(uint32_t type, const T& mine, int64_t timeout_ns) {
    Status status = send_value(type, mine, timeout_ns);
    if (!status.ok()) return status;
    return receive_value<T>(type, timeout_ns);
  }

  // "192.0.2.7:7471" or "[2001:db8::7]:7471".
  const std::string& peer_name() const;
  // For poll() beside other descriptors: after receive() returned a frame, it is readable exactly
  // if something has come since. Reading from it or writing to it breaks the connection.
  int descriptor() const;

 private:
  friend class ControlListener;
  struct State;
  explicit ControlConnection(std::unique_ptr<State> state);

  // So that two sides that send first and receive then cannot block each other, however small the
  // sockets' buffers.
  static constexpr size_t kMaxValueBytes = 4096;
  template <typename T>
  static constexpr void check_exchangeable() {
    static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>);
    static_assert(!std::is_pointer_v<T>, "a pointer means nothing to the peer");
    static_assert(sizeof(T) <= kMaxValueBytes);
    static_assert(std::endian::native == std::endian::little, "values travel as in memory");
  }
  Status send_typed(uint32_t type, const void* value, size_t size_bytes, int64_t timeout_ns);
  Status receive_typed(uint32_t type, void* value, size_t size_bytes, int64_t timeout_ns);

  std::unique_ptr<State> state_;
};

// How much a listener grants to those who have not proved yet that they belong to the job.
struct ControlListenerOptions {
  size_t max_pending = 64;  // handshakes at once; more wait in the system's queue
  int64_t handshake_timeout_ns = 2'000'000'000;  // spent in accept()
};

// Accepts the peers of a job. Strangers are refused with a reason that their side can print and a
// line in the log here (at most one per second on average), and cost the job nothing: their
// handshakes run concurrently with the genuine ones, limited in number and in time as the options
// say. When all places are taken, the oldest one is dropped after a quarter of a second. Movable;
// one thread at a time may use it.
class ControlListener {
 public:
  // Listens on `address` ("127.0.0.1", "0.0.0.0", "::1", "::", a name) and `port` (0: the system
  // picks a free one).
  //   kUnavailable        the port is in use
  //   kPermissionDenied   the system does not let this user have the port
  //   kInvalidArgument    not an address of this host, or options out of range
  static Result<ControlListener> listen(const std::string& address, uint16_t port,
                                        const JobSecret& secret,
                                        const ControlListenerOptions& options = {});

  ControlListener(ControlListener&&) noexcept;
  ControlListener& operator=(ControlListener&&) noexcept;
  ~ControlListener();

  uint16_t port() const;
  // "127.0.0.1:7471".
  const std::string& name() const;

  // The next peer that proved to know the secret. Handshakes proceed only inside this call; those
  // that were not finished when it returns go on in the next one.
  //   kTimeout        no genuine peer came in time
  //   kLimitExceeded  the process or the machine has no descriptor left
  Result<ControlConnection> accept(int64_t timeout_ns);

 private:
  struct State;
  explicit ControlListener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbena

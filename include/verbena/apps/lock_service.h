// Locks and sequencers that a server keeps and clients use by calls ("memsem" III-E: those "with
// channel semantic RPC", beside which the ones of remote memory are measured). Their interface is
// that of verbena/remote_lock.h and remote_sequencer.h.
//
//   // The server: one thread.
//   auto server = LockServer::create(device, domain, {.locks = 16});
//   (*server)->connect(*control);                        // once for each client
//   while (running) (*server)->poll();
//
//   // A client: one for each thread.
//   auto client = LockClient::connect(device, domain, *control);
//   RpcSpinlock lock(**client, /*number=*/3);
//   VERBENA_RETURN_IF_ERROR(lock.lock(/*timeout_ns=*/1'000'000'000));
//   ... work on what it protects, while lock.lease_left_ns() is enough ...
//   VERBENA_RETURN_IF_ERROR(lock.unlock());
//   RpcSequencer log(**client, /*number=*/0);
//   Result<uint64_t> place = log.next(record_bytes);     // so many numbers from there on
//
// Waiting. The paper compares spinlocks, so a lock that is held is refused at once, and the client
// tries again, with a back-off like that of SpinlockOptions. The server has no queue of those that
// wait: one that dies leaves nothing behind.
//
// Leases and tokens. Each acquisition has a token larger than all before it. The server grants a
// lock for a lease, by its own clock, and checks each step: a lock is granted if it is free or its
// lease has ended, and given back or renewed by the connection that holds it and knows its token.
// So a dead holder blocks nobody for longer than a lease, and a stale token changes nothing. What a
// lease cannot do says verbena/remote_lock.h.
//
// Locks and numbers live as long as the server: one that starts anew begins with all locks free,
// token 0 and number 0.
//
// When to use which: these need a thread at the server, but no atomics of the device; those of
// remote memory need no code there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "verbena/client.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/remote_lock.h"
#include "verbena/rpc.h"
#include "verbena/server.h"
#include "verbena/status.h"

namespace verbena {

inline constexpr uint32_t kMostLocks = 1u << 20;

struct LockServerOptions {
  uint32_t locks = 64;       // 0 to kMostLocks; the clients know them by number, from 0 on
  uint32_t sequencers = 64;  // as many
  // Above 0. How long a client has a lock without renew(), and how long a dead one blocks others.
  uint64_t lease_ns = 10'000'000;
  uint32_t max_connections = 64;
  uint32_t pending = 16;  // the most calls of a client at once, up to 4095
  Protocol protocol = Protocol::kSendSend;
};

struct LockServerStatistics {
  uint64_t grants = 0;     // of locks
  uint64_t takeovers = 0;  // of these, after a lease that had ended
  uint64_t busy = 0;  // attempts that found another word than the client expected: held, mostly
  uint64_t renewals = 0;
  uint64_t releases = 0;
  uint64_t numbers = 0;  // calls for numbers
  uint64_t refused = 0;  // calls that no client of this library makes
};

class LockServer {
 public:
  //   kInvalidArgument, kLimitExceeded  an option is out of range, or a limit of the device
  static Result<std::unique_ptr<LockServer>> create(const Device& device,
                                                    const ProtectionDomain& domain,
                                                    const LockServerOptions& options = {});

  // Takes in the client at the other end of `control`, which calls LockClient::connect() and must
  // outlive the connection. Failures are those of Server::connect().
  Status connect(ControlConnection& control);
  // Answers the calls that have come; returns how many messages that were. Never blocks; allocates
  // nothing.
  uint32_t poll() { return server_->poll(); }
  // From now on calls are refused with kUnavailable: see Server::shut_down().
  void shut_down() { server_->shut_down(); }

  uint32_t connections() const { return server_->connections(); }
  const LockServerStatistics& statistics() const { return statistics_; }

 private:
  struct Lock {
    uint64_t word = 0;  // LockWord
    uint64_t lease_end_ns = 0;
    uint32_t holder = 0;  // connection
  };

  LockServer(std::unique_ptr<Server> server, const LockServerOptions& options);
  CallResult swap(const Call& call, Reply& reply);
  CallResult add(const Call& call, Reply& reply);
  // Whether `lock` may become `desired`, whose present word the client knows.
  bool permits(const Lock& lock, uint32_t connection, LockWord desired, uint64_t at_ns) const;
  CallResult refuse(Reply& reply, const char* text);

  const LockServerOptions options_;
  std::unique_ptr<Server> server_;
  std::vector<Lock> locks_;
  std::vector<uint64_t> sequencers_;
  LockServerStatistics statistics_;
};

struct LockClientOptions {
  Protocol protocol = Protocol::kSendSend;  // as the server's
  uint32_t pending = 16;                    // at most the server's
  // How long a call waits for its answer; 1 and up.
  int64_t call_timeout_ns = 10'000'000'000;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct LockCompletion {
  uint64_t token = 0;
  uint64_t number = 0;  // the first one
  Status status;        // ok: the numbers are the caller's
};

// The connection of a client. One thread at a time uses it and the locks and sequencers that are
// made of it, which it must outlive. After connect, nothing is allocated but the text of errors.
class LockClient {
 public:
  //   kProtocolViolation  the server is none of this release
  //   others              as Client::connect()
  static Result<std::unique_ptr<LockClient>> connect(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     ControlConnection& control,
                                                     const LockClientOptions& options = {});

  // Of the server.
  uint32_t locks() const { return locks_; }
  uint32_t sequencers() const { return sequencers_; }
  uint64_t lease_ns() const { return lease_ns_; }

  // --- one at a time: each returns with the answer, after a round trip ---
  //
  //   kInvalidArgument  the server has no such lock or sequencer, or refuses the step
  //   kTimeout          no answer within call_timeout_ns: it may have happened or not
  //   kUnavailable      the connection broke, or the server shuts down

  // Sets the lock's word to `desired` if it is `expected` (LockWord), and if the server grants it.
  // What it was before.
  Result<uint64_t> compare_and_swap(uint32_t lock, uint64_t expected, uint64_t desired);
  // The first of `count` numbers, which are the caller's.
  Result<uint64_t> fetch_and_add(uint32_t sequencer, uint64_t count);

  // --- many at once ---

  // kWouldBlock: `pending` calls are posted and not polled: poll, then try again. kFailed: see
  // status().
  PostResult post_fetch_and_add(uint32_t sequencer, uint64_t count, uint64_t token);
  // Calls on_completion(const LockCompletion&) for each that is done, in any order; it may post
  // others. Returns how many.
  template <typename OnCompletion>
  uint32_t poll(OnCompletion&& on_completion) {
    client_->poll();
    const uint32_t done = done_count_;
    for (uint32_t i = 0; i < done; ++i) on_completion(take());
    return done;
  }
  // Posted and not taken.
  uint32_t outstanding() const { return outstanding_; }

  const Status& status() const { return client_->status(); }
  // Ends the connection: later calls fail.
  void close() { client_->shut_down(0); }
  // Calls that were made.
  uint64_t calls() const { return client_->statistics().calls; }

 private:
  LockClient(std::unique_ptr<Client> client, const LockClientOptions& options);
  Result<uint64_t> call(uint16_t type, std::span<const char> request);
  Result<uint64_t> number_of(const CallOutcome& outcome) const;
  void put(uint64_t token, const CallOutcome& outcome);
  LockCompletion take();

  const LockClientOptions options_;
  std::unique_ptr<Client> client_;
  uint32_t locks_ = 0;
  uint32_t sequencers_ = 0;
  uint64_t lease_ns_ = 0;
  std::vector<LockCompletion> done_;  // a ring
  uint32_t first_done_ = 0;
  uint32_t done_count_ = 0;
  uint32_t outstanding_ = 0;
};

// How long those that wait pause between attempts: SpinlockOptions.
struct RpcBackoff {
  uint64_t least_ns = 1'000;
  uint64_t most_ns = 64'000;
};

// A lock of the server. The lease is the server's; each attempt is a call.
class RpcSpinlock final : public Spinlock {
 public:
  RpcSpinlock(LockClient& client, uint32_t number, const RpcBackoff& backoff = {})
      : Spinlock({.lease_ns = client.lease_ns(),
                  .backoff_least_ns = backoff.least_ns,
                  .backoff_most_ns = backoff.most_ns}),
        client_(&client),
        number_(number) {}

 private:
  Result<uint64_t> compare_and_swap(uint64_t expected, uint64_t desired) override {
    return client_->compare_and_swap(number_, expected, desired);
  }

  LockClient* client_;
  uint32_t number_;
};

// A sequencer of the server, as RemoteSequencer.
class RpcSequencer {
 public:
  RpcSequencer(LockClient& client, uint32_t number) : client_(&client), number_(number) {}

  // The first of `count` numbers, which are the caller's. One round trip; failures are those of
  // LockClient::fetch_and_add().
  Result<uint64_t> next(uint64_t count = 1) { return client_->fetch_and_add(number_, count); }
  // The same without waiting: LockClient::poll() has the completion.
  PostResult post_next(uint64_t token, uint64_t count = 1) {
    return client_->post_fetch_and_add(number_, count, token);
  }

 private:
  LockClient* client_;
  uint32_t number_;
};

}  // namespace verbena

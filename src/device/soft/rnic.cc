#include "src/device/soft/rnic.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/faults/faults.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/observe/observe.h"
#include "src/device/soft/only_copy.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/ud.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

std::mutex instance_mutex;
std::atomic<Rnic*> instance{nullptr};

constexpr uint64_t kRetryTickNs = 1'000'000;
// How long a peer may be without a CPU before it counts as stopped.
constexpr uint64_t kStandingPeerNs = 2'000'000'000;
constexpr uint64_t kWakeTag = ~0ull;

PageShare::Sharing pages_sharing(Sharing sharing) {
  return sharing == Sharing::kMapped ? PageShare::Sharing::kShared : PageShare::Sharing::kPrivate;
}

// The RNIC is the parent's: the child may neither use it nor, at exit, remove its traces.
void forget_in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  if (Rnic* rnic = instance.exchange(nullptr)) rnic->abandon();
}

// Leaves the registry at a normal exit. Memory and threads stay: contexts may be destroyed later
// than this.
struct LeaveAtExit {
  ~LeaveAtExit() {
    if (Rnic* rnic = instance.load()) rnic->leave();
  }
};

}  // namespace

Result<Rnic*> Rnic::get() {
  if (Rnic* rnic = instance.load(std::memory_order_acquire)) return rnic;
  std::lock_guard guard(instance_mutex);
  if (Rnic* rnic = instance.load(std::memory_order_relaxed)) return rnic;
  VERBENA_ASSIGN_OR_RETURN(Rnic * rnic, make());
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  instance.store(rnic, std::memory_order_release);
  static LeaveAtExit leave_at_exit;
  return rnic;
}

Rnic* Rnic::existing() { return instance.load(std::memory_order_acquire); }

namespace {

constexpr const char* kMakeDumpable = "VERBENA_MAKE_DUMPABLE";

// The kernel lets only privileged processes open the memory file of one that is not dumpable: of
// one that gave up other rights (setuid), whose program its user may not read, or that asked for
// it. To change that is for who runs the program to decide. One that has more rights than its
// caller stays as it is.
void allow_peers_to_open() {
  if (prctl(PR_GET_DUMPABLE) == 1 || getauxval(AT_SECURE) != 0) return;
  const char* const asked = std::getenv(kMakeDumpable);
  if (asked != nullptr && std::string_view(asked) == "1") {
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return;
  }
  log_warning(
      "soft0: process {} is not dumpable (it gave up rights, or asked for that), so peers without "
      "CAP_SYS_PTRACE cannot open its memory; set {}=1 to make it dumpable, which lets other "
      "processes of user {} read all of it",
      getpid(), kMakeDumpable, geteuid());
}

}  // namespace

Result<Rnic*> Rnic::make() {
  VERBENA_RETURN_IF_ERROR(check_only_copy());
  allow_peers_to_open();
  VERBENA_ASSIGN_OR_RETURN(Registry registry, Registry::open());
  std::unique_ptr<Rnic> rnic(new Rnic(std::move(registry)));
  VERBENA_RETURN_IF_ERROR(rnic->start());
  return rnic.release();
}

Status Rnic::start() {
  xrc_queues_ = std::make_unique<XrcQueues>(*this);
  VERBENA_ASSIGN_OR_RETURN(pages_, PageShare::create());
  VERBENA_ASSIGN_OR_RETURN(void* tables, allocate_shared(sizeof(Header)));
  header_ = static_cast<Header*>(tables);
  pages_->show_moves(&header_->page_moves);
  VERBENA_RETURN_IF_ERROR(regions_.open(header_->regions));

  int wake_pipe[2];
  if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    return {StatusCode::kLimitExceeded,
            fmt::format("soft0: cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                        strerror(errno))};
  }
  wake_read_fd_ = wake_pipe[0];
  wake_write_fd_ = wake_pipe[1];
  // Peers open its read end themselves.
  int life_pipe[2];
  if (pipe2(life_pipe, O_CLOEXEC) != 0) {
    return {StatusCode::kLimitExceeded,
            fmt::format("soft0: cannot make a pipe: {}; raise the limit of open files (ulimit -n)",
                        strerror(errno))};
  }
  close(life_pipe[0]);
  life_fd_ = life_pipe[1];
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (epoll_fd_ < 0 || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_read_fd_, &event) != 0) {
    return {
        StatusCode::kLimitExceeded,
        fmt::format(
            "soft0: cannot make an epoll descriptor: {}; raise the limit of open files (ulimit -n)",
            strerror(errno))};
  }

  header_->magic = kLayoutMagic;
  header_->version = kLayoutVersion;
  header_->pid = getpid();
  header_->wake_fd = wake_read_fd_;
  header_->wake_id = pipe_id(wake_read_fd_);

  ProcessRecord record{};
  record.memory_fd = pages_->fd();
  record.header_address = reinterpret_cast<uint64_t>(header_);
  record.life_fd = life_fd_;
  record.life_id = pipe_id(life_fd_);
  service_ = start_thread("verbena-soft0", [this] {
    service_thread_.store(static_cast<int32_t>(syscall(SYS_gettid)));
    serve();
  });
  if (!service_.joinable()) {
    return {StatusCode::kLimitExceeded,
            "soft0: cannot start its service thread; raise the limit of processes (ulimit -u, "
            "pids.max)"};
  }
  for (Waiter waiter; service_thread_.load() == 0;) waiter.idle();
  record.service_thread = service_thread_.load();
  VERBENA_ASSIGN_OR_RETURN(slot_, registry_.join(record));
  header_->slot = slot_;
  counters_ = std::make_unique<CounterFile>(registry_, slot_);
  self_ = Peer::self(slot_, header_, *pages_);
  return {};
}

Rnic::~Rnic() {
  if (service_.joinable()) {
    stopping_.store(true);
    wake();
    service_.join();
  }
  for (int fd : {wake_read_fd_, wake_write_fd_, life_fd_, epoll_fd_}) {
    if (fd >= 0) close(fd);
  }
  if (header_ != nullptr) free_shared(header_, sizeof(Header));
}

void Rnic::leave() {
  faults::stop();
  registry_.leave();
}

void Rnic::abandon() {
  registry_.abandon();
  // The parent may end, or become another program, while this child lives.
  if (life_fd_ >= 0) close(std::exchange(life_fd_, -1));
}

Result<void*> Rnic::allocate_shared(size_t size_bytes) { return pages_->map_new(size_bytes); }

void Rnic::free_shared(void* address, size_t size_bytes) { pages_->unmap_new(address, size_bytes); }

Result<void*> Rnic::allocate_completion_queue() {
  {
    const std::lock_guard guard(completion_queues_mutex_);
    if (!free_completion_queues_.empty()) {
      auto* queue = static_cast<CqShared*>(free_completion_queues_.back());
      free_completion_queues_.pop_back();
      queue->armed.store(0);
      queue->has_channel = 0;
      queue->channel_fd = -1;
      queue->channel_id = 0;
      queue->cookie = 0;
      for (std::atomic<uint64_t>& bits : queue->ready_bits)
        bits.store(0, std::memory_order_relaxed);
      return queue;
    }
  }
  return allocate_shared(sizeof(CqShared));
}

void Rnic::free_completion_queue(void* address) {
  const std::lock_guard guard(completion_queues_mutex_);
  free_completion_queues_.push_back(address);
}

Result<uint32_t> Rnic::publish(Qp* qp) {
  std::lock_guard guard(queue_pairs_mutex_);
  for (uint32_t step = 0; step < kMaxQueuePairs; ++step) {
    const uint32_t index = (next_qp_index_ + step) % kMaxQueuePairs;
    if (index >= queue_pairs_.size()) queue_pairs_.resize(index + 1, nullptr);
    if (queue_pairs_[index] != nullptr) continue;
    queue_pairs_[index] = qp;
    next_qp_index_ = index + 1;
    header_->queue_pairs[index].store(reinterpret_cast<uint64_t>(qp->shared),
                                      std::memory_order_release);
    return index;
  }
  return Status(StatusCode::kLimitExceeded,
                fmt::format("soft0: all {} queue pairs of this process are in use; destroy some, "
                            "or use another process",
                            kMaxQueuePairs));
}

void Rnic::withdraw(uint32_t index) {
  std::lock_guard guard(queue_pairs_mutex_);
  VERBENA_ASSERT(queue_pair(index) != nullptr);
  header_->queue_pairs[index].store(0, std::memory_order_release);
  queue_pairs_[index] = nullptr;
}

QpCounters& Rnic::count_queue_pair(uint32_t index, Transport transport) {
  std::lock_guard guard(queue_pairs_mutex_);
  return counters_->enter(index, make_qp_number(slot_, index), transport);
}

bool Rnic::reached_by_peers(uint32_t access) {
  return (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND)) != 0;
}

void Rnic::stop_sharing(uint64_t address, uint64_t length_bytes, uint32_t access, Sharing sharing) {
  // A segment is the application's; what is only a source, or was left in place, never was shared.
  if (sharing == Sharing::kSegment || !reached_by_peers(access) || length_bytes == 0 ||
      (access & kLeftAccess) != 0) {
    return;
  }
  pages_->release(reinterpret_cast<void*>(address), length_bytes, pages_sharing(sharing));
}

Status Rnic::take_from_peers(const RegionEntry& region) {
  const uint64_t address = region.address.load(std::memory_order_relaxed);
  const uint64_t length_bytes = region.length_bytes.load(std::memory_order_relaxed);
  const Sharing sharing = region.sharing.load(std::memory_order_relaxed);
  const std::vector<PeerFlight> flights = quiesce_peers();
  if (flights.empty() || length_bytes == 0) {
    stop_sharing(address, length_bytes, region.access.load(std::memory_order_relaxed), sharing);
    return {};
  }
  const auto gone_on = [flights] {
    return std::all_of(flights.begin(), flights.end(),
                       [](const PeerFlight& flight) { return flight.over(); });
  };
  const std::string who = describe(flights);
  const Status cut =
      sharing == Sharing::kSegment
          ? Status(StatusCode::kUnavailable, "it is a System V segment, which peers attach")
          : pages_->cut_off(reinterpret_cast<void*>(address), length_bytes, pages_sharing(sharing),
                            {gone_on, who});
  if (cut.ok()) return cut;
  return {StatusCode::kUnavailable,
          fmt::format("soft0: {} is stopped in the middle of an access to this memory, which "
                      "cannot be revoked ({}); continue or end it, then deregister again",
                      who, cut.message())};
}

Status Rnic::revoke_region(uint32_t key) {
  if (!regions_.invalidate(key)) {
    return {StatusCode::kUnavailable,
            "soft0: memory windows are bound to the region; invalidate or deallocate them first"};
  }
  faults::wait_for_running();
  observe::wait_for_captures();
  const RegionEntry& own = regions_.own()[region_index(key)];
  const uint32_t access = own.access.load(std::memory_order_relaxed);
  // It is used where the program has it, by this process alone.
  const bool left = (access & kLeftAccess) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  if (left || !reached_by_peers(access)) {
    wait_for_own_requests();
    return {};
  }
  return take_from_peers(own);
}

Status Rnic::deregister_region(uint32_t key) {
  VERBENA_RETURN_IF_ERROR(revoke_region(key));
  regions_.free_place(key);
  return {};
}

Status Rnic::replace_region(uint32_t key, const NewRegion& region) {
  VERBENA_RETURN_IF_ERROR(revoke_region(key));
  regions_.enter_again(key, region);
  return {};
}

Result<std::shared_ptr<Peer>> Rnic::attach_for_datagrams(uint32_t slot) {
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, attach(slot));
  const std::lock_guard guard(peers_mutex_);
  if (!peer->is_self() && !peer->dead()) kept_peers_[slot] = peer;
  return peer;
}

Result<std::shared_ptr<Peer>> Rnic::attach(uint32_t slot) {
  std::lock_guard guard(peers_mutex_);
  std::weak_ptr<Peer>& known = peers_[slot];
  if (std::shared_ptr<Peer> peer = known.lock(); peer != nullptr && !peer->dead()) return peer;
  if (slot == slot_) {
    known = self_;
    return self_;
  }
  VERBENA_ASSIGN_OR_RETURN(ProcessRecord record, registry_.find(slot));
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, Peer::attach(record));
  for (const int fd : {peer->life_fd(), peer->pid_fd(), peer->thread_fd()}) {
    if (fd < 0) continue;
    epoll_event event{};
    // The end of a pipe is always reported; what a peer may write into it is none.
    event.events = (fd == peer->life_fd() ? 0u : EPOLLIN) | EPOLLONESHOT;
    event.data.u64 = slot;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return Status(StatusCode::kLimitExceeded,
                    fmt::format("soft0: cannot watch process {}: {}; raise "
                                "fs.epoll.max_user_watches",
                                peer->pid(), strerror(errno)));
    }
  }
  known = peer;
  return peer;
}

bool PeerFlight::over() const {
  if (process == nullptr) return to->sends_nothing(slot);
  // In this order: a word that is of other memory by now was read before it was withdrawn.
  return word->load(std::memory_order_acquire) != seen ||
         (published != nullptr && published->load(std::memory_order_acquire) != address) ||
         process->dead();
}

std::optional<PeerFlight> flight_of_peer(const Qp& qp) {
  const PeerQp& peer = qp.peer;
  if (peer.shared == nullptr) return std::nullopt;
  PeerFlight flight{.process = peer.process, .word = &peer.shared->in_flight, .seen = 0};
  if (!peer.process->is_self()) {
    // One that has another peer by now, or none, or another queue pair in its place, is not on its
    // way to here; what it does first when it connects again is to see what was taken away.
    if (gate_peer(peer.shared->gate.load(std::memory_order_acquire)) != qp.number)
      return std::nullopt;
    flight.published = &peer.process->header().queue_pairs[index_of(peer.number)];
    flight.address = peer.address;
  }
  // Acquire: whether the queue pair is there is asked after the word was read.
  flight.seen = flight.word->load(std::memory_order_acquire);
  if (flight.seen % 2 == 0 || flight.over()) return std::nullopt;
  return flight;
}

std::string Rnic::describe(const std::vector<PeerFlight>& standing) {
  if (standing.empty()) return "";
  const PeerFlight& first = standing.front();
  return first.process != nullptr
             ? fmt::format("process {}", first.process->pid())
             : fmt::format("the process in slot {}, which cannot be looked at,", first.slot);
}

namespace {

// A thread of this process goes on in any case.
void wait_for_flight(const Qp& qp) {
  const uint64_t seen = qp.flight.load(std::memory_order_acquire);
  for (Waiter waiter; seen % 2 != 0 && qp.flight.load(std::memory_order_acquire) == seen;) {
    waiter.idle();
  }
}

}  // namespace

void Rnic::wait_for_own_requests() {
  heavy_fence_all();  // as in quiesce_peers()
  for_each_queue_pair(wait_for_flight);
}

// What the peer of a queue pair is in the middle of. Of this process, it is waited for here. Holds
// lock_links(), under which its queue pair stays.
void Rnic::add_flight(const Qp& qp, std::vector<PeerFlight>& flights) {
  if (qp.peer.shared == nullptr) return;
  if (qp.peer.process->is_self()) {
    const Qp* other = queue_pair(index_of(qp.peer.number));
    if (other != nullptr) wait_for_flight(*other);
    return;
  }
  if (std::optional<PeerFlight> flight = flight_of_peer(qp)) flights.push_back(*flight);
}

std::vector<Rnic::PeerFlight> Rnic::quiesce_peers(const Qp* only) {
  // Pairs with light_fence() after an initiator's store to in_flight: either it sees what was taken
  // away, or we see it.
  heavy_fence_all();
  std::vector<PeerFlight> flights;
  const auto look_at = [&](const Qp& qp) {
    // Its own requests fill what is deregistered, too; and where those of XRC go, nobody is
    // connected to it.
    if (only == nullptr) wait_for_flight(qp);
    add_flight(qp, flights);
  };
  if (only != nullptr) {
    const auto links = lock_links();
    look_at(*only);
  } else {
    for_each_queue_pair(look_at);
    xrc_queues_->add_flights(flights);
  }
  return wait_for(std::move(flights));
}

void Rnic::wait_to_flush(Cq& cq) {
  uint64_t last_ticket = 0;
  {
    const OwnerLock::Guard guard(cq.lock);
    const auto has_ticket = [](const Qp* qp) { return qp->flush_ticket != 0; };
    if (!std::any_of(cq.flushing.begin(), cq.flushing.end(), has_ticket)) return;
    last_ticket = cq.flush_tickets;
  }
  heavy_fence_all();  // as in quiesce_peers(): their gates were shut before
  std::vector<PeerFlight> flights;
  for_each_queue_pair([&](const Qp& qp) {
    if (qp.recv_cq != &cq) return;
    {
      const OwnerLock::Guard guard(cq.lock);
      if (qp.flush_ticket == 0) return;
    }
    add_flight(qp, flights);
  });
  wait_for(std::move(flights));
  const OwnerLock::Guard guard(cq.lock);
  for (Qp* qp : cq.flushing) {
    if (qp->flush_ticket <= last_ticket) end_flush_wait(*qp);
  }
}

std::vector<Rnic::PeerFlight> Rnic::wait_for(std::vector<PeerFlight> flights) {
  const uint64_t limit_ns = now_ns() + kStandingPeerNs;
  const auto is_over = [](const PeerFlight& flight) { return flight.over(); };
  const auto stands = [this](const PeerFlight& flight) { return known_to_stand(flight); };
  for (Waiter waiter; std::erase_if(flights, is_over), !flights.empty(); waiter.idle()) {
    if (now_ns() > limit_ns || std::all_of(flights.begin(), flights.end(), stands)) break;
  }
  const std::lock_guard guard(standing_mutex_);
  for (const PeerFlight& flight : flights) {
    if (flight.process != nullptr) standing_[flight.word] = flight.seen;
  }
  return flights;
}

bool Rnic::known_to_stand(const PeerFlight& flight) {
  // That it cannot be attached does not change by waiting.
  if (flight.process == nullptr) return true;
  const std::lock_guard guard(standing_mutex_);
  const auto known = standing_.find(flight.word);
  if (known == standing_.end()) return false;
  if (known->second == flight.seen) return true;
  standing_.erase(known);
  return false;
}

void Rnic::wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_write_fd_, &byte, 1);
}

void Rnic::begin_waiting() {
  if (waiting_.fetch_add(1, std::memory_order_relaxed) == 0) wake();
}

void Rnic::end_waiting() { end_use(waiting_); }

void Rnic::begin_datagrams() {
  if (datagram_receivers_.fetch_add(1, std::memory_order_relaxed) == 0) wake();
}

void Rnic::end_datagrams() { end_use(datagram_receivers_); }

void Rnic::serve() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    epoll_event events[16];
    const bool waiting = waiting_.load(std::memory_order_relaxed) > 0;
    const bool datagrams = datagram_receivers_.load(std::memory_order_relaxed) > 0;
    const bool late = group_notices_.pending() || xrc_queues_->has_unwatched();
    int timeout_ms = -1;
    if (waiting || !ending_.empty()) {
      timeout_ms = static_cast<int>(kRetryTickNs / 1'000'000);
    } else if (datagrams || late) {
      timeout_ms = static_cast<int>(kDatagramLookNs / 1'000'000);
    }
    const int count = epoll_wait(epoll_fd_, events, 16, timeout_ms);
    bool asked = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeTag) {
        char bytes[256];
        while (read(wake_read_fd_, bytes, sizeof(bytes)) > 0) {
        }
        asked = true;
      } else {
        mark_dead(static_cast<uint32_t>(events[i].data.u64));
      }
    }
    for (const uint32_t slot : std::exchange(ending_, {})) mark_dead(slot);
    if (asked) handle_faults();
    if (waiting) retry_idle();
    if (datagrams) take_back_datagrams();
    if (late) make_up_for_descriptors();
  }
}

void Rnic::mark_dead(uint32_t slot) {
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard guard(peers_mutex_);
    peer = peers_[slot].lock();
  }
  // The event may be that of a former process in the slot.
  if (peer == nullptr || peer->dead()) return;
  if (peer->exists()) {
    if (peer->ending()) ending_.push_back(slot);
    return;
  }
  peer->set_dead();
  {
    const std::lock_guard guard(peers_mutex_);
    if (const auto kept = kept_peers_.find(slot);
        kept != kept_peers_.end() && kept->second == peer) {
      kept_peers_.erase(kept);
    }
  }
  pages_->check_standing_peers();
  for_each_queue_pair([&](Qp& qp) {
    if (qp.peer.process == peer) peer_ended(qp);
    // Else all memory that it had registered would stay until the queue pair sends elsewhere.
    const OwnerLock::Guard guard(qp.send_lock);
    if (qp.destinations != nullptr) qp.destinations->forget(*peer);
    forget_targets(qp, *peer);
  });
  xrc_queues_->sender_ended(slot);
  xrc_queues_->forget_ended_senders();
  ring_abandoned_channels(*this);
}

void Rnic::handle_faults() {
  for_each_queue_pair(accept_blame);
  xrc_queues_->watch_senders();
  ring_abandoned_channels(*this);
}

Result<Cq*> Rnic::idle_queue() {
  const std::lock_guard guard(queue_pairs_mutex_);
  if (idle_queue_ != nullptr) return idle_queue_;
  VERBENA_ASSIGN_OR_RETURN(void* memory, allocate_completion_queue());
  auto* queue = new Cq;
  queue->rnic = this;
  queue->completions.configure(1);
  queue->shared = static_cast<CqShared*>(memory);
  idle_queue_ = queue;
  return queue;
}

void Rnic::take_back_datagrams() {
  const uint64_t now = now_ns();
  if (now - last_take_back_ns_ < kDatagramLookNs) return;
  last_take_back_ns_ = now;
  for_each_queue_pair([](Qp& qp) {
    if (qp.datagrams != nullptr) ud_take_back(qp);
  });
}

// What could not be done without file descriptors.
void Rnic::make_up_for_descriptors() {
  const uint64_t now = now_ns();
  if (now - last_made_up_ns_ < kDatagramLookNs) return;
  last_made_up_ns_ = now;
  if (group_notices_.pending()) group_notices_.tell_again();
  if (xrc_queues_->has_unwatched()) xrc_queues_->watch_senders();
}

void Rnic::retry_idle() {
  // Whoever polls retries by itself, and faster; this is for queue pairs whose owners sleep.
  const uint64_t now = now_ns();
  for_each_queue_pair([&](Qp& qp) {
    ud_look_after(qp);
    if (!qp.waiting.empty() &&
        now - qp.waiting.last_retry_ns.load(std::memory_order_relaxed) > kRetryTickNs) {
      retry_waiting(qp);
    }
  });
}

}  // namespace verbena::soft

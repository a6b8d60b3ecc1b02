// The software RNIC of this process: its published tables, its place among the user's processes,
// its service thread.
//
// One per process, made when the device is first opened and kept until the process ends: peers may
// still be reading its memory after the last context is closed.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/datagram_ring.h"
#include "src/device/soft/group_notices.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/observe/counter_file.h"
#include "src/device/soft/pages/page_share.h"
#include "src/device/soft/region_table.h"
#include "src/device/soft/registry.h"
#include "src/device/soft/xrc_queues.h"
#include "verbena/status.h"

namespace verbena::soft {

class Peer;
struct Qp;
struct Cq;

// A peer's operation on this process's memory that had not ended when last checked.
struct PeerFlight {
  std::shared_ptr<Peer> process;
  const std::atomic<uint64_t>* word;  // QpShared::in_flight, as mapped here
  uint64_t seen;
  // Where the process publishes its queue pair, and its address: the word is one as long as it is
  // there. Null: of this process, whose queue pair stays while it is looked at.
  const std::atomic<uint64_t>* published = nullptr;
  uint64_t address = 0;
  // Without a process: of a sender to XRC queues that cannot be attached now.
  uint32_t slot = 0;
  XrcQueues* to = nullptr;
  bool over() const;
};

// What the connected peer of `qp` is in the middle of now; nothing where it is in no operation, or
// its queue pair is gone or has another peer. Holds Rnic::lock_links() or the send_lock of `qp`.
// The caller has fenced: see Rnic::quiesce_peers().
std::optional<PeerFlight> flight_of_peer(const Qp& qp);

class Rnic {
 public:
  // The RNIC of this process; the first call makes it. An error is not remembered: the next call
  // tries again.
  static Result<Rnic*> get();
  // The RNIC if there is one already.
  static Rnic* existing();
  ~Rnic();
  // Removes this process from the registry.
  void leave();
  // In a forked child: the RNIC is the parent's.
  void abandon();

  uint32_t slot() const { return slot_; }
  Header& header() { return *header_; }
  const Header& header() const { return *header_; }
  // What the header's region table says, where no peer can write: for looking up own keys.
  const RegionEntry* own_regions() const { return regions_.own(); }
  PageShare& pages() { return *pages_; }
  // This process as its own peer.
  Peer& self() { return *self_; }
  const Registry& registry() const { return registry_; }

  // Zeroed memory that peers can map; whole pages.
  Result<void*> allocate_shared(size_t size_bytes);
  void free_shared(void* address, size_t size_bytes);
  // The same for completion queues, of which peers that send datagrams may still hear after their
  // end: the memory is used for other ones only.
  Result<void*> allocate_completion_queue();
  void free_completion_queue(void* address);
  DatagramRings& datagram_rings() { return datagram_rings_; }
  XrcQueues& xrc_queues() { return *xrc_queues_; }
  GroupNotices& group_notices() { return group_notices_; }
  // A completion queue that nobody polls, for queue pairs that complete nothing.
  Result<Cq*> idle_queue();

  // The counters of a queue pair that has been published.
  QpCounters& count_queue_pair(uint32_t index, Transport transport);

  // Index allocation. Freed indexes are reused as late as possible.
  Result<uint32_t> publish(Qp* qp);
  void withdraw(uint32_t index);

  // Enters a region and returns its key.
  Result<uint32_t> register_region(const NewRegion& region) { return regions_.enter(region); }
  RegionTable& regions() { return regions_; }
  // Gives the key of a registered region to another one. Fails as deregister_region(), and the key
  // is invalid then.
  Status replace_region(uint32_t key, const NewRegion& region);
  // Makes the key invalid and takes the memory out of every peer's reach. Fails with kUnavailable
  // if a peer stands still in the middle of an access that cannot be cut off: the key is invalid
  // all the same, and another call goes on. Also with kUnavailable if memory windows are bound to
  // it, and then it stays as it is.
  Status deregister_region(uint32_t key);
  // Whether peers ever touch a region with this access: otherwise it is only a source of sends.
  static bool reached_by_peers(uint32_t access);
  // Ends what share() did for a region.
  void stop_sharing(uint64_t address, uint64_t length_bytes, uint32_t access, Sharing sharing);

  // The process in a slot, mapped on first use and kept as long as anyone here uses it.
  Result<std::shared_ptr<Peer>> attach(uint32_t slot);
  // The same, kept as long as it lives.
  Result<std::shared_ptr<Peer>> attach_for_datagrams(uint32_t slot);

  using PeerFlight = verbena::soft::PeerFlight;
  // Waits until no connected peer, and without `only` no own request, is in the middle of an
  // operation that began before this call: what was taken away before is not touched after. Returns
  // peers that stand still, stopped or without a CPU; each is waited for once, a bounded time.
  std::vector<PeerFlight> quiesce_peers(const Qp* only = nullptr);
  // Waits until the peers of queue pairs that have failed are done with their receives, which `cq`
  // flushes from then on; for peers that stand still as quiesce_peers().
  void wait_to_flush(Cq& cq);
  // Waits until no queue pair of this process is in the middle of a part of a request that it began
  // before this call: requests look up their own memory again before the next part.
  void wait_for_own_requests();
  // "process 7", for messages.
  static std::string describe(const std::vector<PeerFlight>& standing);

  // Service thread: something to do now, and while any queue pair waits.
  void wake();
  void begin_waiting();
  void end_waiting();
  // A queue pair that receives datagrams: while there are any, the service thread looks every
  // kDatagramLookNs for senders that ended with receives of theirs.
  static constexpr uint64_t kDatagramLookNs = 250'000'000;
  void begin_datagrams();
  void end_datagrams();
  // Held while a queue pair's link to its peer (Qp::peer) is changed, and by those who read links
  // of others. Comes before the queue pair's own locks.
  std::unique_lock<std::mutex> lock_links() { return std::unique_lock(queue_pairs_mutex_); }
  // The queue pair of this process at `index`, or null. Holds lock_links().
  Qp* queue_pair(uint32_t index) const {
    return index < queue_pairs_.size() ? queue_pairs_[index] : nullptr;
  }
  // Runs `use` on every queue pair while none can be made, destroyed or linked.
  template <typename Use>
  void for_each_queue_pair(Use&& use) {
    std::lock_guard guard(queue_pairs_mutex_);
    for (Qp* qp : queue_pairs_) {
      if (qp != nullptr) use(*qp);
    }
  }

  // How many of these the process has.
  std::atomic<uint32_t> domain_count{0};
  std::atomic<uint32_t> completion_queue_count{0};
  std::atomic<uint32_t> shared_receive_queue_count{0};
  std::atomic<uint32_t> address_handle_count{0};

  uint32_t next_generation() {
    return next_generation_.fetch_add(1, std::memory_order_relaxed) + 1;
  }

 private:
  explicit Rnic(Registry registry) : registry_(std::move(registry)) {}
  static Result<Rnic*> make();
  Status start();
  bool known_to_stand(const PeerFlight& flight);
  void add_flight(const Qp& qp, std::vector<PeerFlight>& flights);
  std::vector<PeerFlight> wait_for(std::vector<PeerFlight> flights);
  Status take_from_peers(const RegionEntry& region);
  Status revoke_region(uint32_t key);
  void serve();
  void mark_dead(uint32_t slot);
  void handle_faults();
  void retry_idle();
  void take_back_datagrams();
  void make_up_for_descriptors();

  Registry registry_;
  std::unique_ptr<PageShare> pages_;
  Header* header_ = nullptr;
  uint32_t slot_ = 0;
  std::atomic<uint32_t> next_generation_{0};

  std::mutex queue_pairs_mutex_;
  std::unique_ptr<CounterFile> counters_;
  std::vector<Qp*> queue_pairs_;
  uint32_t next_qp_index_ = 0;

  RegionTable regions_;

  std::shared_ptr<Peer> self_;
  std::mutex peers_mutex_;
  std::unordered_map<uint32_t, std::weak_ptr<Peer>> peers_;
  std::unordered_map<uint32_t, std::shared_ptr<Peer>> kept_peers_;  // for datagrams

  DatagramRings datagram_rings_;
  std::unique_ptr<XrcQueues> xrc_queues_;
  GroupNotices group_notices_{*this};
  Cq* idle_queue_ = nullptr;  // stays: queue pairs may be destroyed late
  std::mutex completion_queues_mutex_;
  std::vector<void*> free_completion_queues_;

  std::mutex standing_mutex_;
  std::map<const std::atomic<uint64_t>*, uint64_t> standing_;  // PeerFlight: word, seen

  // Slots of peers whose programs are about to end; the service thread's.
  std::vector<uint32_t> ending_;

  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> datagram_receivers_{0};
  uint64_t last_take_back_ns_ = 0;  // the service thread's
  uint64_t last_made_up_ns_ = 0;    // the service thread's
  std::atomic<bool> stopping_{false};
  int wake_read_fd_ = -1;
  int wake_write_fd_ = -1;
  int life_fd_ = -1;  // nothing is written: its end is what peers wait for
  int epoll_fd_ = -1;
  std::atomic<int32_t> service_thread_{0};  // the kernel's number of it
  Thread service_;
};

}  // namespace verbena::soft

// A simulated RNIC: reliable connections with SEND, WRITE, READ and atomics; unreliable ones with
// SEND and WRITE; datagrams.
//
// A message's way, each step an event: doorbell over the bus; fetch of the WQE, unless it came
// with its doorbell; fetch of the payload, unless it is inline; the sending side, one packet after
// the other, taking turns between queue pairs; link and switch (fabric.h); the receiving side;
// payload and completion over the bus into memory; the acknowledgement back the same way.
//
//   doorbells.cc      doorbells, fetches of WQEs
//   transmit.cc       fetches of payloads, the sending side
//   receive.cc        the receiving side, placement
//   receive_queue.cc  receives and their fetches
//   rc_requester.cc   READs and atomics, acknowledgements, retries, time-outs
//   rc_responder.cc   requests in their order, responses, refusals
//   uc.cc             what unreliable connections do in place of these two
//   ud.cc             datagrams, and where they go
//   error_state.cc    completions of sends, errors
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/fabric.h"
#include "src/device/sim/fifo_server.h"
#include "src/device/sim/objects.h"
#include "src/device/sim/places.h"
#include "src/device/sim/random_cache.h"
#include "src/device/sim/state_cache.h"

namespace verbena::sim {

class Node;
class Recorder;
class Simulation;
struct Fiber;

// How long each unit of an RNIC has worked since the beginning.
struct RnicBusy {
  Time bus_down = 0;  // towards the RNIC; in both directions where they share it
  Time bus_up = 0;
  Time reads = 0;      // all places of DMA reads that wait for their data
  Time doorbells = 0;  // that wait for their contexts
  Time sending = 0;
  Time receiving = 0;
  Time atomics = 0;
  std::vector<Time> queue_pairs;  // gaps between messages, by number
};

class Rnic {
 public:
  Rnic(Simulation& simulation, Node& node, uint64_t seed);

  // --- from the processor ---
  // Before a WQE goes along with its doorbell: the running thread stands still until the RNIC
  // has room for it.
  void await_wqe_room();
  uint64_t wqe_room() const { return wqe_room_; }
  // The running thread rings for all that was posted; `along`: the new WQE comes along.
  void ring(QueuePair& qp, bool along);
  // At the time when it reaches the RNIC.
  void receives_posted(ReceiveQueue& queue, uint64_t count);

  // --- from the network ---
  void packet_arrived(Packet* packet);
  // The link takes packets again.
  void link_ready() { start_next(); }

  // --- for who measures ---
  RnicBusy busy() const;

  // --- control ---
  Region* find_region(uint32_t key);
  uint32_t add_region(std::unique_ptr<Region> region);
  void remove_region(uint32_t key);
  QueuePair* find_queue_pair(uint32_t number);
  QueuePair& add_queue_pair(ibv_qp_type type);
  void remove_queue_pair(QueuePair& qp);
  // RESET: forgets everything that is under way.
  void reset(QueuePair& qp);
  // To the error state; what waits completes with `first` and then as flushed.
  void fail(QueuePair& qp, ibv_wc_status first);
  // To SQE, which of queue pairs without reliability only the send queue is in. The same for what
  // is posted there.
  void fail_sends(QueuePair& qp, ibv_wc_status first);

  // What is posted to a queue pair in the error state.
  void flush_sends(QueuePair& qp);
  void flush_receives(QueuePair& qp);
  // Keeps what was destroyed while packets may still name it.
  void keep(Srq* srq) { kept_.emplace_back(srq); }

 private:
  // What the sending side does next.
  struct Job {
    enum class Kind : uint8_t { kRequest, kResponse, kAck } kind;
    QueuePair* qp;
    uint32_t generation;
  };
  // A packet to send, the time that making it takes, and how much longer it is on its way.
  struct Made {
    Packet* packet = nullptr;
    Time cost = 0;
    Time delay = 0;
  };

  // A queue pair that has been rung for, and waits for its turn.
  struct Doorbell {
    QueuePair* qp;
    uint32_t generation;
    bool along;  // a WQE came with it
  };

  // --- doorbells.cc ---
  static void doorbell_arrived(void* qp, uint64_t argument);
  static void doorbell_context(void* rnic, uint64_t);
  static void wqes_fetched(void* qp, uint64_t argument);
  bool note_doorbell(QueuePair& qp, uint32_t generation, uint32_t count, bool along);
  void record_doorbell_wait(const QueuePair& qp);
  void handle_doorbells();
  void take_doorbell();
  void make_wqe_room();

  // --- transmit.cc ---
  static void payload_fetched(void* qp, uint64_t stamp);
  static void sent(void* rnic, uint64_t);
  static void paced(void* qp, uint64_t generation);
  static void emit(void* packet, uint64_t);
  Time gather_read(QueuePair& qp, uint64_t message, uint64_t offset, uint64_t bytes, Time* read);
  Time gather_time(QueuePair& qp, uint64_t message) const;
  void fetch_payloads(QueuePair& qp);
  void enqueue_job(std::deque<Job>& ring, const Job& job, uint32_t* turn_sent);
  // Gives the queue pair a turn if it has something to send.
  void schedule_requests(QueuePair& qp);
  bool may_send(QueuePair& qp);
  void start_next();
  Made make_request(QueuePair& qp);
  Packet* make_packet(QueuePair& qp, PacketKind kind);
  // Whether the packet's bytes move (Simulation::Options::copy_all).
  bool moves(const Packet& packet) const;

  // --- receive.cc ---
  static void received(void* packet, uint64_t);
  static void place(void* packet, uint64_t);
  void request_received(Packet* packet);
  // True: the packet was taken over.
  bool take_write(QueuePair& qp, Packet* packet);
  bool take_send(QueuePair& qp, Packet* packet);
  void land(QueuePair& qp, Packet* packet, Region* region);
  void record_placed(Recorder& recorder, const Packet& packet);
  // Copies between a gather list and bytes. gather() is false, and scatter() leaves out, where the
  // memory is not registered so any more.
  bool gather(QueuePair& qp, uint64_t message, uint64_t offset, std::byte* bytes, uint64_t length);
  void scatter(const ibv_sge* sges, uint32_t count, uint64_t offset, const std::byte* bytes,
               uint64_t length, Fiber** owner);
  // Whether scatter() may write all of it: memory of this domain, for local writes.
  bool may_scatter(const ibv_pd* domain, const ibv_sge* sges, uint32_t count, uint64_t offset,
                   uint64_t length);
  // The same of the packet's payload and the queue pair's current receive.
  bool may_fill_receive(QueuePair& qp, const Packet& packet);

  // --- receive_queue.cc ---
  static void receives_fetched(void* queue, uint64_t count);
  static void record_read(void* queue, uint64_t epoch);
  static void take_starving(ReceiveQueue& queue);
  enum class Receive : uint8_t { kReady, kFetching, kNone };
  Receive next_receive(QueuePair& qp);
  Receive take_receive(QueuePair& qp, Packet* packet);
  void consume_receive(QueuePair& qp, Packet& packet);
  void fetch_receives(ReceiveQueue& queue);
  void complete_receive(QueuePair& qp, uint64_t slot, ibv_wc_status status);

  // --- rc_requester.cc ---
  static void timer(void* qp, uint64_t generation);
  static void rnr_over(void* qp, uint64_t generation);
  static bool may_begin(const QueuePair& qp, const Wqe& wqe);
  // Completes the packet of a READ or an atomic.
  void ask(QueuePair& qp, Wqe& wqe, Made& made);
  void response_received(Packet* packet);
  void ack_received(const Packet& packet);
  void acknowledge(QueuePair& qp, uint64_t messages);
  void retire(QueuePair& qp);
  void begin_at(QueuePair& qp, uint64_t message);
  // The first READ or atomic without its response, or sent_ever.
  static uint64_t next_answer(QueuePair& qp);
  void go_back(QueuePair& qp);
  void start_timer(QueuePair& qp);

  // --- rc_responder.cc ---
  static void response_fetched(void* qp, uint64_t stamp);
  static void atomic_done(void* packet, uint64_t);
  // True: the packet was taken over.
  bool take_request(Packet* packet);
  void take_read(QueuePair& qp, const Packet& packet);
  bool take_atomic(QueuePair& qp, Packet* packet);
  void advance(QueuePair& qp, const Packet& packet);
  void repeat(QueuePair& qp, const Packet& packet);
  bool may_read(QueuePair& qp, uint32_t rkey, uint64_t address, uint64_t bytes);
  void respond(QueuePair& qp, const PendingResponse& response);
  // `message`: the one that is refused.
  void refuse(QueuePair& qp, NakCode code, uint64_t message);
  void fetch_responses(QueuePair& qp);
  static bool may_respond(const QueuePair& qp);
  // Give the queue pair a turn if it has something to send.
  void schedule_responses(QueuePair& qp);
  void schedule_ack(QueuePair& qp);
  Made make_response(QueuePair& qp);
  Made make_ack(QueuePair& qp);

  // --- uc.cc ---
  // The packet of an unreliable queue pair is on the link at `when`: with the last one of a message
  // this has all that there is to do for it.
  void note_sent(QueuePair& qp, const Packet& packet, Time when);
  static void message_sent(void* qp, uint64_t stamp);
  // A WQE whose own memory, or length, does not do.
  void fail_locally(QueuePair& qp, const Wqe& wqe);
  // True: the packet was taken over.
  bool take_unreliable(Packet* packet);

  // --- ud.cc ---
  static bool is_too_long(const QueuePair& qp, const Wqe& wqe);
  // Says where the packet goes, and what of a datagram comes before its payload.
  void address_datagram(QueuePair& qp, Packet& packet);
  bool take_datagram(Packet* packet);

  // --- error_state.cc ---
  static void completion_visible(void* packet, uint64_t);
  void complete(QueuePair& qp, uint64_t message, ibv_wc_status status);

  // --- shared by all (rnic.cc) ---
  QueuePair& queue_pair(uint32_t number) const {
    return queue_pairs_[number / kQueuePairsOfBlock][number % kQueuePairsOfBlock];
  }
  void reset_receives(ReceiveQueue& receives);
  // For who looks it up by and by.
  void prefetch_region(uint32_t key) const;
  // Of a packet: `delay` grows by what it waits for state, the result is what the others wait, too.
  Time context_cost(QueuePair& qp, Time* delay);
  Time receive_cost(QueuePair& qp, Time* delay);
  Time state_missed(uint64_t fetches, Time* delay);
  // Of a packet that needs WQEs again, to place a response or to complete what it tells of.
  void read_lost_wqes(QueuePair& qp, const Packet& packet, Time* delay);
  // `cost`, which a cache's miss has added to that of a packet.
  Time missed(Time cost);
  // Translations that an access to memory needs and the chip has not: how long fetching them one
  // after the other takes on a bus that is free, and when this one has brought them.
  struct Translations {
    Time alone = 0;
    Time there = 0;
  };
  // Fetches them; of a gather list, entry by entry.
  void translate(Region& region, uint64_t address, uint64_t bytes, Translations* missing);
  void translate(const ibv_sge* sges, uint32_t count, uint64_t offset, uint64_t bytes,
                 Translations* missing);
  // What a queue pair waits for those of what it receives or answers, behind what it did before.
  Time translated(QueuePair& qp, const Translations& missing);
  // When data that is asked for now is there, and when data that is sent now is visible; `far`: on
  // another socket than the port.
  Time bus_read(uint64_t bytes, bool far = false);
  Time bus_write(uint64_t bytes, bool far = false);
  // Whether the first piece of a gather list is.
  bool is_far(const QueuePair& qp, const ibv_sge* sges, uint32_t count);
  Time bus_up_free_at() const;

  Simulation& simulation_;
  Node& node_;
  Random dice_;
  Server bus_down_;
  Server bus_up_;
  Places reads_;  // DMA reads that wait for their data
  Server receiving_;
  Server atomics_;
  RandomCache contexts_;
  StateCache read_states_;
  StateCache translations_;

  std::deque<Doorbell> doorbells_;
  bool handles_doorbell_ = false;  // the first of them waits for a context
  Time doorbells_busy_ = 0;
  uint64_t kept_wqes_ = 0;  // of all queue pairs (QueuePair::kept_wqes)
  const uint64_t wqe_room_;
  uint64_t wqes_along_ = 0;     // on their way with their doorbells, or waiting here
  std::deque<Fiber*> stalled_;  // threads whose next one has no room

  bool sending_ = false;
  Made made_;  // what is being sent
  Time sending_busy_ = 0;
  Server units_;  // that send, and read WQEs again
  bool responses_turn_ = false;
  std::deque<Job> requests_;
  std::deque<Job> responses_;

  std::vector<std::unique_ptr<Region>> regions_;  // by the key's upper bits
  std::vector<uint32_t> free_regions_;
  std::vector<uint32_t> generations_;  // of the regions' places
  WqePool wqe_pool_;
  static constexpr uint32_t kQueuePairsOfBlock = 16;
  std::vector<std::unique_ptr<QueuePair[]>> queue_pairs_;  // by number, in blocks
  uint32_t next_queue_pair_ = 1;                           // number 0 is that of subnet management
  std::vector<std::unique_ptr<Srq>> kept_;
};

}  // namespace verbena::sim

// The network: a link from every RNIC to one switch and back, and what travels there.
//
// Input-buffered, lossless by credits: packets wait, they are not dropped. With one FIFO per input
// (a profile's choice) a packet whose output is busy also holds up those behind it, and credits run
// out all the way back: a receiving side that falls behind holds up its switch port, full inputs of
// the switch hold up the RNICs that send. So what waits, waits in the senders' queues.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/event_queue.h"
#include "src/device/sim/fifo_server.h"
#include "src/device/sim/objects.h"

namespace verbena::sim {

class Node;
class Simulation;

enum class PacketKind : uint8_t { kRequest, kReadResponse, kAtomicResponse, kAck, kNak };
struct Packet {
  PacketKind kind = PacketKind::kRequest;
  NakCode nak = NakCode::kNone;
  bool last = false;
  bool datagram = false;
  uint8_t service_level = 0;  // datagrams
  uint8_t grh_bytes = 0;      // datagrams: of the global route header, in front of the payload
  Node* from = nullptr;
  Node* to = nullptr;  // a datagram's may be null: no port has its address
  QueuePair* source = nullptr;
  QueuePair* target = nullptr;
  uint32_t source_generation = 0;
  uint32_t target_generation = 0;
  uint64_t message = 0;  // its number in the requester's queue; of an ack: all below have arrived
  uint32_t index = 0;
  uint32_t payload_bytes = 0;
  uint64_t offset = 0;    // of the payload in the message
  uint64_t address = 0;   // READ response: where the payload lies at the responder
  uint64_t original = 0;  // atomic response
  uint64_t compare = 0;   // atomics
  uint64_t swap = 0;
  uint32_t rkey = 0;          // of a datagram: its queue key
  uint32_t length_bytes = 0;  // of the message
  uint32_t imm_data = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  std::byte* bytes = nullptr;  // the payload, from when the receiving side has it
  // Once it has arrived: what is written to memory, and the completion with it.
  Region* region = nullptr;
  Cq* cq = nullptr;
  Cq::Entry entry{};
  Packet* next_free = nullptr;
};

// Faults of the network, each from the simulation's seed.
struct FaultRates {
  uint32_t loss_ppm = 0;   // of packets
  uint32_t delay_ppm = 0;  // of packets, each by up to
  Time delay_most = 0;
};

class Fabric {
 public:
  explicit Fabric(Simulation& simulation, uint64_t seed) : simulation_(simulation), dice_(seed) {}

  void add_port(Node& node);
  void set_faults(const FaultRates& faults) { faults_ = faults; }
  // A port that is down loses what it sends and what is sent to it.
  void set_link(Node& node, bool up);

  Packet* allocate();
  void free(Packet* packet);
  // Gives the packet room for its payload.
  void hold_payload(Packet& packet);

  // The RNIC gives a packet to its link. It arrives at the other one's receiving side, or is lost.
  void send(Packet* packet);
  // Whether its link has credits. After a `false`, Rnic::link_ready() is called once it has.
  bool ready(const Node& node);
  // The receiving side has done with what crossed the switch, or dropped it: its room is free.
  void handled(const Packet& packet);
  // How long the links of a node have carried something: to the switch and from it.
  Time busy_to_switch(const Node& node) const;
  Time busy_from_switch(const Node& node) const;
  uint64_t delivered() const { return delivered_; }
  uint64_t lost() const { return lost_; }

 private:
  struct Port {
    Node* node = nullptr;
    bool up = true;
    Server to_switch;
    Server from_switch;
    uint64_t sent_bytes = 0;      // by the RNIC, and not across the switch yet
    bool stalled = false;         // the RNIC waits for credits
    uint64_t received_bytes = 0;  // from the switch, and not handled by the RNIC yet
    std::deque<Packet*> input;
    Time input_free_at = 0;
    bool input_waits = false;         // its head waits for an output, or for its own turn
    std::deque<uint32_t> contenders;  // inputs whose heads wait for this output
    bool output_event = false;
    std::vector<Time> latest_arrivals;  // of what came from this input, by its output
  };

  Time wire_time(const Node& node, const Packet& packet) const;
  static bool full(const Port& port);
  void crossed(const Packet& packet, Port& input);
  void wake_output(uint32_t port);
  static void at_switch(void* packet, uint64_t);
  static void at_output(void* fabric, uint64_t port);
  static void at_input(void* fabric, uint64_t port);
  static void arrive(void* packet, uint64_t);
  void forward_head(uint32_t input);
  void cross(Packet* packet, Port& input, Port& output);
  bool lose(const Packet& packet);

  Simulation& simulation_;
  Random dice_;
  FaultRates faults_;
  std::vector<Port> ports_;  // by node
  std::vector<std::unique_ptr<Packet[]>> blocks_;
  Packet* free_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> payloads_;
  std::vector<std::byte*> free_payloads_;
  uint64_t delivered_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace verbena::sim

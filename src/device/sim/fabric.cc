#include "src/device/sim/fabric.h"

#include <algorithm>

#include "src/device/sim/packet_headers.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

// In which credits are counted.
constexpr uint64_t kCreditBytes = 64;

uint64_t request_header_bytes(const Packet& packet) {
  uint64_t bytes = kBaseHeaderBytes;
  if (packet.datagram) bytes += kDatagramHeaderBytes + packet.grh_bytes;
  switch (packet.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      if (packet.index == 0) bytes += kRdmaHeaderBytes;
      break;
    case IBV_WR_RDMA_READ:
      return bytes + kRdmaHeaderBytes;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return bytes + kAtomicHeaderBytes;
    default:
      break;
  }
  const bool immediate =
      packet.opcode == IBV_WR_SEND_WITH_IMM || packet.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (packet.last && immediate) bytes += kImmediateBytes;
  return bytes;
}

uint64_t header_bytes(const Packet& packet) {
  switch (packet.kind) {
    case PacketKind::kRequest:
      return request_header_bytes(packet);
    case PacketKind::kAtomicResponse:
      return kBaseHeaderBytes + kAckHeaderBytes + kAtomicAckBytes;
    default:
      return kBaseHeaderBytes + kAckHeaderBytes;
  }
}

uint64_t credit_bytes(const Packet& packet) {
  const uint64_t bytes = packet.payload_bytes + header_bytes(packet);
  return (bytes + kCreditBytes - 1) / kCreditBytes * kCreditBytes;
}

}  // namespace

void Fabric::add_port(Node& node) {
  ports_.emplace_back();
  ports_.back().node = &node;
}

void Fabric::set_link(Node& node, bool up) { ports_[node.number].up = up; }

Packet* Fabric::allocate() {
  constexpr size_t kBlock = 256;
  if (free_ == nullptr) {
    blocks_.push_back(std::make_unique<Packet[]>(kBlock));
    for (size_t i = 0; i < kBlock; ++i) {
      blocks_.back()[i].next_free = free_;
      free_ = &blocks_.back()[i];
    }
  }
  Packet* const packet = free_;
  free_ = packet->next_free;
  *packet = Packet{};
  return packet;
}

void Fabric::hold_payload(Packet& packet) {
  constexpr size_t kLargestMtuBytes = 4096;
  if (free_payloads_.empty()) {
    payloads_.push_back(std::make_unique<std::byte[]>(sizeof(ibv_grh) + kLargestMtuBytes));
    free_payloads_.push_back(payloads_.back().get());
  }
  packet.bytes = free_payloads_.back();
  free_payloads_.pop_back();
}

void Fabric::free(Packet* packet) {
  if (packet->bytes != nullptr) free_payloads_.push_back(packet->bytes);
  packet->next_free = free_;
  free_ = packet;
}

Time Fabric::wire_time(const Node& node, const Packet& packet) const {
  const uint64_t payload = padded_bytes(packet.payload_bytes);
  return node.profile.link_time(payload + header_bytes(packet) +
                                node.profile.packet_overhead_bytes);
}

// ---- credits ----

bool Fabric::full(const Port& port) {
  return port.received_bytes >= port.node->profile.port_buffer_bytes;
}

bool Fabric::ready(const Node& node) {
  Port& port = ports_[node.number];
  if (port.sent_bytes < node.profile.port_buffer_bytes) return true;
  port.stalled = true;
  return false;
}

void Fabric::crossed(const Packet& packet, Port& input) {
  input.sent_bytes -= credit_bytes(packet);
  if (input.stalled && input.sent_bytes < input.node->profile.port_buffer_bytes) {
    input.stalled = false;
    input.node->rnic.link_ready();
  }
}

void Fabric::handled(const Packet& packet) {
  Port& port = ports_[packet.to->number];
  port.received_bytes -= credit_bytes(packet);
  if (!port.contenders.empty() && !full(port)) wake_output(packet.to->number);
}

Time Fabric::busy_to_switch(const Node& node) const {
  return ports_[node.number].to_switch.busy(simulation_.now());
}

Time Fabric::busy_from_switch(const Node& node) const {
  return ports_[node.number].from_switch.busy(simulation_.now());
}

// Its next contender goes as soon as the output is free.
void Fabric::wake_output(uint32_t number) {
  Port& output = ports_[number];
  if (output.output_event) return;
  output.output_event = true;
  simulation_.at(std::max(simulation_.now(), output.from_switch.free_at()), at_output, this,
                 number);
}

// ---- the way ----

bool Fabric::lose(const Packet& packet) {
  if (packet.to == nullptr || !ports_[packet.from->number].up || !ports_[packet.to->number].up)
    return true;
  return faults_.loss_ppm != 0 && dice_.below(1'000'000) < faults_.loss_ppm;
}

void Fabric::send(Packet* packet) {
  const Time now = simulation_.now();
  if (lose(*packet)) {
    ++lost_;
    free(packet);
    return;
  }
  Port& port = ports_[packet->from->number];
  const Time took = wire_time(*packet->from, *packet);
  const Time begun = port.to_switch.serve(now, took) - took;
  const Profile& profile = packet->from->profile;
  const Time reached = begun + profile.cable + profile.tx_latency;
  port.sent_bytes += credit_bytes(*packet);
  if (Recorder* const recorder = simulation_.recorder()) {
    recorder->served(StepKind::kLinkWait, StepKind::kCable, packet->from->number,
                     Recorder::of(*packet), now, begun, begun + profile.cable);
    recorder->step(StepKind::kSendPipeline, packet->from->number, Recorder::of(*packet),
                   begun + profile.cable, reached);
  }
  // Cut-through: the switch begins with the first bytes. What the RNIC takes for each packet beside
  // others has no effect on their order, so it counts as way.
  simulation_.at(reached, at_switch, packet);
}

void Fabric::at_switch(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  Fabric& fabric = Simulation::current()->fabric();
  const uint32_t number = packet->from->number;
  Port& input = fabric.ports_[number];
  if (packet->from->profile.switch_input_queues == 0) {
    fabric.cross(packet, input, fabric.ports_[packet->to->number]);
    return;
  }
  input.input.push_back(packet);
  if (!input.input_waits) fabric.forward_head(number);
}

// Moves the heads of an input on for as long as they can go.
void Fabric::forward_head(uint32_t number) {
  Port& input = ports_[number];
  input.input_waits = false;
  if (input.input.empty()) return;
  const Time now = simulation_.now();
  input.input_waits = true;
  if (input.input_free_at > now) {
    simulation_.at(input.input_free_at, at_input, this, number);
    return;
  }
  Packet* const packet = input.input.front();
  const uint32_t to = packet->to->number;
  Port& output = ports_[to];
  if (output.from_switch.free_at() > now || !output.contenders.empty() || full(output)) {
    output.contenders.push_back(number);
    if (!full(output)) wake_output(to);
    return;
  }
  input.input.pop_front();
  cross(packet, input, output);
  if (input.input.empty()) {
    input.input_waits = false;
  } else {
    simulation_.at(input.input_free_at, at_input, this, number);
  }
}

void Fabric::at_input(void* object, uint64_t port) {
  static_cast<Fabric*>(object)->forward_head(static_cast<uint32_t>(port));
}

void Fabric::at_output(void* object, uint64_t port) {
  auto& fabric = *static_cast<Fabric*>(object);
  Port& output = fabric.ports_[port];
  output.output_event = false;
  if (output.contenders.empty() || full(output)) return;
  const uint32_t number = output.contenders.front();
  output.contenders.pop_front();
  Port& input = fabric.ports_[number];
  Packet* const packet = input.input.front();
  input.input.pop_front();
  fabric.cross(packet, input, output);
  if (!output.contenders.empty() && !full(output)) fabric.wake_output(static_cast<uint32_t>(port));
  if (input.input.empty()) {
    input.input_waits = false;
  } else {
    fabric.simulation_.at(input.input_free_at, at_input, &fabric, number);
  }
}

void Fabric::cross(Packet* packet, Port& input, Port& output) {
  const Profile& profile = packet->to->profile;
  const Time now = simulation_.now();
  const Time took = std::max(wire_time(*packet->from, *packet), wire_time(*packet->to, *packet));
  const Time sent = output.from_switch.serve(now, took);
  input.input_free_at = sent;
  output.received_bytes += credit_bytes(*packet);
  crossed(*packet, input);
  const Time at_rnic = sent + profile.switch_latency + profile.cable;
  Time arrival = at_rnic + profile.rx_latency;
  if (faults_.delay_ppm != 0 && dice_.below(1'000'000) < faults_.delay_ppm) {
    arrival += dice_.below(faults_.delay_most + 1);
  }
  if (faults_.delay_ppm != 0) {
    // Paths keep their order: what is behind waits, too.
    input.latest_arrivals.resize(ports_.size());
    Time& latest = input.latest_arrivals[packet->to->number];
    arrival = latest = std::max(arrival, latest);
  }
  if (Recorder* const recorder = simulation_.recorder()) {
    const StepOf of = Recorder::of(*packet);
    recorder->step(StepKind::kLink, packet->to->number, of, sent - took, sent);
    recorder->step(StepKind::kSwitch, packet->to->number, of, sent, at_rnic);
    recorder->step(StepKind::kReceivePipeline, packet->to->number, of, at_rnic, arrival);
  }
  simulation_.at(arrival, arrive, packet);
}

void Fabric::arrive(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  Fabric& fabric = Simulation::current()->fabric();
  if (packet->to->crashed || !fabric.ports_[packet->to->number].up) {
    ++fabric.lost_;
    fabric.handled(*packet);
    fabric.free(packet);
    return;
  }
  ++fabric.delivered_;
  packet->to->rnic.packet_arrived(packet);
}

}  // namespace verbena::sim

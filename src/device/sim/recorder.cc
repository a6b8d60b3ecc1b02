#include "src/device/sim/recorder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/simulated_node.h"

namespace verbena::sim {

namespace {

struct StepText {
  StepKind kind;
  Component component;
  bool wait;
  const char* text;
};

// clang-format off
constexpr StepText kTexts[] = {
    {StepKind::kPoll, Component::kProcessor, false, "polls of slots"},
    {StepKind::kHandle, Component::kProcessor, false, "handling by the thread"},
    {StepKind::kCopy, Component::kProcessor, false, "copying or clearing"},
    {StepKind::kHandOver, Component::kProcessor, false, "hand-over to another thread"},
    {StepKind::kPollEmpty, Component::kProcessor, false, "poll of the completion queue"},
    {StepKind::kTake, Component::kProcessor, false, "completion of a message taken"},
    {StepKind::kReap, Component::kProcessor, false, "completions of sends taken"},
    {StepKind::kPostReceive, Component::kProcessor, false, "receive posted"},
    {StepKind::kBuild, Component::kPosting, false, "WQE built"},
    {StepKind::kBlueFlame, Component::kPosting, false, "WQE written to the RNIC (BlueFlame)"},
    {StepKind::kRing, Component::kPosting, false, "doorbell written"},
    {StepKind::kLockWait, Component::kPosting, true, "wait for the BlueFlame lock"},
    {StepKind::kBusStall, Component::kPosting, true, "store waits for room in the RNIC (BlueFlame)"},
    {StepKind::kIdle, Component::kProcessor, true, "polling, nothing comes"},
    {StepKind::kAsleep, Component::kProcessor, true, "asleep"},
    {StepKind::kOtherWork, Component::kProcessor, false, "other work of the thread"},
    {StepKind::kDetection, Component::kProcessor, true, "visible, not polled yet (detection)"},
    {StepKind::kOtherMessages, Component::kProcessor, true, "the thread is busy with other messages"},
    {StepKind::kDoorbell, Component::kBus, false, "doorbell over the bus"},
    {StepKind::kWqeFetch, Component::kBus, false, "WQE fetch"},
    {StepKind::kPayloadFetch, Component::kBus, false, "payload fetch"},
    {StepKind::kPlacement, Component::kBus, false, "DMA write of the payload"},
    {StepKind::kCompletionEntry, Component::kBus, false, "DMA write of the CQE"},
    {StepKind::kBusWait, Component::kBus, true, "wait for the bus"},
    {StepKind::kPlacementOrder, Component::kBus, true, "wait for earlier DMA writes"},
    {StepKind::kDoorbellWait, Component::kSendingSide, true, "wait for earlier doorbells"},
    {StepKind::kSend, Component::kSendingSide, false, "packet made and sent"},
    {StepKind::kSendPipeline, Component::kSendingSide, false, "packet on its way through the sending side"},
    {StepKind::kTurn, Component::kSendingSide, true, "wait for arbitration on the sending side"},
    {StepKind::kPacing, Component::kSendingSide, true, "gap between messages of a queue pair"},
    {StepKind::kSameQueuePair, Component::kSendingSide, true, "wait for what the queue pair sends before"},
    {StepKind::kSendOrder, Component::kSendingSide, true, "wait for earlier packets of the queue pair"},
    {StepKind::kReceive, Component::kReceivingSide, false, "packet taken and checked"},
    {StepKind::kReceivePipeline, Component::kReceivingSide, false, "packet on its way through the receiving side"},
    {StepKind::kReceiveWait, Component::kReceivingSide, true, "wait for the receiving side"},
    {StepKind::kReceiveOrder, Component::kReceivingSide, true, "wait for earlier packets of the queue pair"},
    {StepKind::kReceiveEntry, Component::kReceivingSide, true, "wait for the fetch of a receive WQE"},
    {StepKind::kSendMiss, Component::kCaches, false, "state not on chip (sending)"},
    {StepKind::kReceiveMiss, Component::kCaches, false, "state not on chip (receiving)"},
    {StepKind::kTranslationMiss, Component::kCaches, false, "translation not on chip"},
    {StepKind::kLinkWait, Component::kNetwork, true, "wait for the link"},
    {StepKind::kCable, Component::kNetwork, false, "cable to the switch"},
    {StepKind::kSwitchQueue, Component::kNetwork, true, "queue at the switch"},
    {StepKind::kLink, Component::kNetwork, false, "bytes on the link"},
    {StepKind::kSwitch, Component::kNetwork, false, "switch, cable to the RNIC"},
    {StepKind::kUnexplained, Component::kNone, true, "not explained"},
};
// clang-format on
static_assert(std::size(kTexts) == static_cast<size_t>(StepKind::kUnexplained) + 1);

const StepText& text_entry(StepKind kind) {
  const StepText& entry = kTexts[static_cast<size_t>(kind)];
  VERBENA_DEBUG_ASSERT(entry.kind == kind);
  return entry;
}

}  // namespace

const char* text_of(StepKind kind) { return text_entry(kind).text; }
bool is_wait(StepKind kind) { return text_entry(kind).wait; }
Component component_of(StepKind kind) { return text_entry(kind).component; }

const char* text_of(Component component) {
  switch (component) {
    case Component::kProcessor:
      return "CPU, handling";
    case Component::kPosting:
      return "CPU, posting";
    case Component::kBus:
      return "host bus";
    case Component::kSendingSide:
      return "sending side";
    case Component::kReceivingSide:
      return "receiving side";
    case Component::kCaches:
      return "RNIC caches";
    case Component::kNetwork:
      return "network";
    case Component::kNone:
      break;
  }
  return "not explained";
}

StepOf Recorder::of(const QueuePair& qp, uint64_t message) {
  return {.message = {.node = qp.node->number, .queue_pair = qp.verbs.qp_num, .number = message}};
}

StepOf Recorder::of(const Packet& packet) {
  const bool request = packet.kind == PacketKind::kRequest;
  const bool ack = packet.kind == PacketKind::kAck || packet.kind == PacketKind::kNak;
  const QueuePair& source = *packet.source;
  StepOf of;
  // A response is about the WQE that asked for it.
  of.message = {.node = request ? source.node->number : packet.to->number,
                .queue_pair = request ? source.verbs.qp_num : source.own.chosen.dest_qp_num,
                .number = packet.message};
  // Acknowledgements say what comes next.
  if (ack && packet.message > 0) --of.message.number;
  of.packet = packet.kind;
  of.index = packet.index;
  return of;
}

void Recorder::add(const Step& step) {
  if (step.begin >= step.end) return;
  if (steps_.size() == most_steps_) {
    complete_until_ = std::min(complete_until_, step.begin);
    return;
  }
  steps_.push_back(step);
}

void Recorder::step(StepKind kind, uint32_t node, const StepOf& of, Time begin, Time end) {
  add({.kind = kind,
       .packet = of.packet,
       .node = node,
       .index = of.index,
       .named = true,
       .message = of.message,
       .begin = begin,
       .end = end});
}

void Recorder::served(StepKind wait, StepKind kind, uint32_t node, const StepOf& of, Time now,
                      Time free, Time end) {
  const Time begin = std::max(now, free);
  step(wait, node, of, now, begin);
  step(kind, node, of, begin, end);
}

uint32_t Recorder::number_of(const Fiber& fiber) {
  const auto [place, added] =
      thread_numbers_.emplace(&fiber, static_cast<uint32_t>(threads_.size()));
  if (added) threads_.push_back({fiber.node->number, fiber.number, fiber.name});
  return place->second;
}

void Recorder::thread_step(const Fiber& fiber, StepKind kind, Time begin, Time end,
                           const MessageId* about) {
  add({.kind = kind,
       .node = fiber.node->number,
       .thread = number_of(fiber),
       .named = about != nullptr,
       .message = about != nullptr ? *about : MessageId{},
       .begin = begin,
       .end = end});
}

void Recorder::charged(const Fiber& fiber, Time begin, Time end) {
  const Step charge = std::exchange(next_charge_, {.kind = StepKind::kOtherWork});
  thread_step(fiber, charge.kind, begin, end, charge.named ? &charge.message : nullptr);
}

void Recorder::worked(const Fiber& fiber, bool found, Time begin, Time polled, Time copied,
                      Time end) {
  const Time copies = end - std::min(copied, end - begin);
  const Time handling = found ? std::min(begin + polled, copies) : copies;
  thread_step(fiber, StepKind::kPoll, begin, handling);
  thread_step(fiber, StepKind::kHandle, handling, copies);
  thread_step(fiber, StepKind::kCopy, copies, end);
}

void Recorder::doorbell(const Fiber* fiber, QueuePair& qp, uint64_t first, uint64_t count, Time now,
                        Time there) {
  if (steps_.size() == most_steps_) return;
  for (uint64_t number = first; number < count; ++number) {
    const Wqe& wqe = qp.wqe(number);
    const StepOf message = of(qp, number);
    step(StepKind::kDoorbell, qp.node->number, message, now, there);
    posts_.push_back({.message = message.message,
                      .first = first,
                      .thread = fiber != nullptr ? number_of(*fiber) : kNoThread,
                      .rang_at = now,
                      .address = wqe.sges > 0 ? qp.sges_of(number)[0].addr : 0,
                      .length_bytes = wqe.length_bytes,
                      .opcode = wqe.opcode});
  }
}

void Recorder::handled(StepKind kind, StepKind miss, uint32_t node, const StepOf& of, Time begin,
                       Time end) {
  const Time missed = begin + std::min(std::exchange(missed_, 0), end - begin);
  step(miss, node, of, begin, missed);
  step(kind, node, of, missed, end);
}

void Recorder::packet_placed(const Packet& packet, uint64_t address, Time now) {
  if (steps_.size() == most_steps_) return;
  placed_.push_back({.message = of(packet).message,
                     .node = packet.to->number,
                     .address = address,
                     .bytes = packet.payload_bytes,
                     .at = now});
}

void Recorder::message_taken(const Fiber& fiber, Taken taken) {
  taken.thread = number_of(fiber);
  taken_.push_back(taken);
}

}  // namespace verbena::sim

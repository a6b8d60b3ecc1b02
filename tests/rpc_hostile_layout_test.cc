// Malformed lengths, marks, slots and immediates, one by one, for every design: in requests, which
// the responder punishes by ending that connection only, and in responses, which the requester
// reports.
#include <algorithm>

#include "tests/rpc_hostile.h"

namespace verbena::rpc_test {
namespace {

using channel::MessageImmediate;

constexpr const char* kBroke = "broke the protocol";
constexpr uint32_t kRequestBytes = 64;    // capacity of the hostile requester's slots
constexpr uint32_t kResponseBytes = 256;  // and of the hostile responder's
constexpr uint32_t kPending = 2;

using Bytes = std::vector<char>;

void put(Bytes& slot, size_t offset, uint64_t word) {
  std::memcpy(slot.data() + offset, &word, sizeof(word));
}

// What no sender makes: a slot, the notification byte that announces it where the layout has one,
// and what is wrong with it.
struct Malformed {
  Bytes slot;
  uint8_t notification = 0;
  const char* reason = "completion mark";
};

// For the layouts whose receivers poll memory. A new layout's belong here.
std::vector<Malformed> malformed_slots(MarkLayout layout, const channel::SlotShape& shape) {
  const uint64_t too_long = shape.capacity_bytes + 1;
  std::vector<Malformed> slots;
  const auto add = [&](size_t offset, uint64_t word) -> Bytes& {
    slots.push_back({Bytes(shape.slot_bytes)});
    put(slots.back().slot, offset, word);
    return slots.back().slot;
  };
  const auto add_notified = [&](uint8_t notification, uint64_t length, const char* reason) {
    add(0, length);
    slots.back().notification = notification;
    slots.back().reason = reason;
  };
  switch (layout) {
    case MarkLayout::kLastBit: {
      const size_t mark = shape.slot_bytes - 8;
      add(mark, uint64_t{1} << 63 | too_long);
      add(mark, uint64_t{1} << 63 | uint64_t{1} << 32);  // 0 if it were cut to 32 bits
      add(mark, ~uint64_t{0});
      break;
    }
    case MarkLayout::kLengthMarkers:
      add(0, uint64_t{0xa5} << 56 | too_long << 24);
      add(0, uint64_t{0xa5} << 56 | uint64_t{0xffffffff} << 24);
      add(0, uint64_t{0xa4} << 56 | uint64_t{8} << 24);             // another marker at the head
      add(0, uint64_t{0xa5} << 56 | uint64_t{8} << 24)[23] = 0x11;  // and at the tail
      break;
    case MarkLayout::kHeadTail:
      add(0, uint64_t{0x5a} << 56 | too_long);
      add(0, uint64_t{0xc3} << 56 | uint64_t{1} << 55);
      add(0, uint64_t{0x5b} << 56 | 8);  // a flag that is none of the two
      break;
    case MarkLayout::kDense:
      add_notified(1, too_long, "larger than agreed");
      add_notified(1, 0xffffffff, "larger than agreed");
      add_notified(1, 0x80000000, "larger than agreed");  // below 0 if it had a sign
      // Announced by another number than the one, with a length that would do.
      add_notified(2, 8, "completion mark");
      add_notified(0x81, 8, "completion mark");
      add_notified(0xff, 8, "completion mark");
      break;
    case MarkLayout::kImmediate:
    case MarkLayout::kAutomatic:
      break;
  }
  return slots;
}

// How many there are for the requests, or the responses, of all designs: each layout's for each of
// two protocols.
constexpr uint32_t kAttacks = 2 * (3 + 4 + 3 + 6);

// The first slot is empty: the second is found although the first is expected next.
HostileTask in_second_slot(const Case& c, const Malformed& malformed) {
  HostileTask task;
  task.c = c;
  task.slots_bytes = static_cast<uint32_t>(2 * malformed.slot.size());
  std::copy(malformed.slot.begin(), malformed.slot.end(),
            task.slots.begin() + static_cast<ptrdiff_t>(malformed.slot.size()));
  task.notified_slot = 1;
  task.notification = malformed.notification;
  return task;
}

TEST_F(RpcHostileTest, MalformedSlotsOfRequests) {
  uint32_t attacks = 0;
  for_each_design(
      []<typename Design>() {
        return Design::RequestChannel::kWritesSlots && !Design::RequestChannel::kConsumesReceives;
      },
      [&]<typename Design>() {
        const channel::SlotShape shape = Design::RequestChannel::shape(kRequestBytes);
        for (const Malformed& malformed : malformed_slots(Design::kLayout, shape)) {
          const HostileTask task = in_second_slot(hostile_case_of<Design>(), malformed);
          expect_ended<Design>(malformed.reason, [&](auto& hostile) { carry_out(task, hostile); });
          expect_other_process_ended<Design>(malformed.reason, task);
          ++attacks;
        }
      });
  EXPECT_EQ(attacks, kAttacks);
}

TEST_F(RpcHostileTest, MalformedSlotsOfResponses) {
  uint32_t attacks = 0;
  for_each_design(
      []<typename Design>() {
        return Design::ResponseChannel::kWritesSlots && !Design::ResponseChannel::kConsumesReceives;
      },
      [&]<typename Design>() {
        const channel::SlotShape shape = Design::ResponseChannel::shape(kResponseBytes);
        for (const Malformed& malformed : malformed_slots(Design::kLayout, shape)) {
          expect_reported<Design>(malformed.reason, [&](auto& hostile) {
            hostile.write(malformed.slot);
            if (malformed.notification != 0) hostile.notify(0, malformed.notification);
          });
          ++attacks;
        }
      });
  EXPECT_EQ(attacks, kAttacks);
}

// Immediates that name a slot or a connection that is not the sender's.
std::vector<uint32_t> foreign_immediates(uint32_t connection) {
  return {MessageImmediate{connection, kPending}.immediate(),
          MessageImmediate{connection, 0xffff}.immediate(),
          MessageImmediate{0, 0}.immediate(),  // the good one's
          MessageImmediate{connection + 1, 0}.immediate(), ~0u};
}

TEST_F(RpcHostileTest, ImmediatesOfRequestsThatNameNothing) {
  for_each_design([]<typename Design>() { return Design::RequestChannel::kConsumesReceives; },
                  [&]<typename Design>() {
                    for (size_t i = 0; i < foreign_immediates(0).size(); ++i) {
                      expect_ended<Design>("a slot that it does not have", [&](auto& hostile) {
                        const uint32_t immediate = foreign_immediates(hostile.peer().connection)[i];
                        if (Design::RequestChannel::kWritesSlots) {
                          hostile.write_with_immediate(Bytes(10, 'x'), immediate);
                        } else {
                          hostile.send(Bytes(10, 'x'), immediate);
                        }
                      });
                    }
                  });
}

TEST_F(RpcHostileTest, RequestsThatAreLargerThanAgreedOrByAnotherVerb) {
  for_each_design(
      []<typename Design>() { return Design::RequestChannel::kConsumesReceives; },
      [&]<typename Design>() {
        expect_ended<Design>("larger than agreed", [](auto& hostile) {
          const uint32_t immediate = MessageImmediate{hostile.peer().connection, 0}.immediate();
          // What receives it has the room: only the terms forbid it.
          const Bytes too_long(kRequestBytes + 1, 'x');
          if (Design::RequestChannel::kWritesSlots) {
            hostile.write_with_immediate(too_long, immediate);
          } else {
            hostile.send(too_long, immediate);
          }
        });
        expect_ended<Design>("another verb than agreed",
                             [](auto& hostile) { hostile.send_without_immediate({}); });
        if (!Design::RequestChannel::kWritesSlots) return;
        expect_ended<Design>("another verb than agreed", [](auto& hostile) {
          hostile.send({}, MessageImmediate{hostile.peer().connection, 0}.immediate());
        });
      });
}

TEST_F(RpcHostileTest, ResponsesThatNobodyAskedForOrByAnotherVerb) {
  for_each_design([]<typename Design>() { return Design::ResponseChannel::kConsumesReceives; },
                  [&]<typename Design>() {
                    // Slot 1 exists but waits for nothing.
                    for (const uint32_t slot : {1u, kPending, 0xffffu}) {
                      expect_reported<Design>(kBroke, [&](auto& hostile) {
                        const uint32_t immediate = MessageImmediate{0, slot}.immediate();
                        if (Design::ResponseChannel::kWritesSlots) {
                          hostile.write_with_immediate(Bytes(10, 'x'), immediate);
                        } else {
                          hostile.send(Bytes(10, 'x'), immediate);
                        }
                      });
                    }
                    expect_reported<Design>("another verb than agreed", [](auto& hostile) {
                      hostile.send_without_immediate({});
                    });
                    if (!Design::ResponseChannel::kWritesSlots) return;
                    expect_reported<Design>("larger than agreed", [](auto& hostile) {
                      hostile.write_with_immediate(Bytes(kResponseBytes + 1, 'x'),
                                                   MessageImmediate{0, 0}.immediate());
                    });
                  });
}

}  // namespace
}  // namespace verbena::rpc_test

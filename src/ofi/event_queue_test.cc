#include "src/ofi/event_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>

#include "src/base/runtime.h"

namespace verbena::ofi {
namespace {

struct CloseQueue {
  void operator()(fid_eq* queue) const { fi_close(&queue->fid); }
};
using Queue = std::unique_ptr<fid_eq, CloseQueue>;

Queue open(size_t size) {
  fi_eq_attr attributes{};
  attributes.size = size;
  fid_eq* queue = nullptr;
  EXPECT_EQ(open_event_queue(nullptr, &attributes, &queue, nullptr), 0);
  return Queue(queue);
}

TEST(EventQueueTest, EventsAreReadInTheirOrderAndPeekedAt) {
  const Queue queue = open(8);
  for (uint64_t i = 1; i <= 2; ++i) {
    const fi_eq_entry entry{.fid = nullptr, .context = nullptr, .data = i};
    ASSERT_EQ(fi_eq_write(queue.get(), FI_NOTIFY, &entry, sizeof(entry), 0),
              ssize_t{sizeof(entry)});
  }
  uint32_t event = 0;
  fi_eq_entry entry{};
  ASSERT_EQ(fi_eq_read(queue.get(), &event, &entry, sizeof(entry), FI_PEEK),
            ssize_t{sizeof(entry)});
  EXPECT_EQ(entry.data, 1u);
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_EQ(fi_eq_read(queue.get(), &event, &entry, sizeof(entry), 0), ssize_t{sizeof(entry)});
    EXPECT_EQ(event, uint32_t{FI_NOTIFY});
    EXPECT_EQ(entry.data, i);
  }
  EXPECT_EQ(fi_eq_read(queue.get(), &event, &entry, sizeof(entry), 0), -FI_EAGAIN);
}

TEST(EventQueueTest, AFullOneRefusesAndLosesNothing) {
  const Queue queue = open(2);
  const fi_eq_entry entry{};
  for (int i = 0; i < 2; ++i)
    ASSERT_GT(fi_eq_write(queue.get(), FI_NOTIFY, &entry, sizeof(entry), 0), 0);
  EXPECT_EQ(fi_eq_write(queue.get(), FI_NOTIFY, &entry, sizeof(entry), 0), -FI_EAGAIN);
  uint32_t event = 0;
  char small[4];
  EXPECT_EQ(fi_eq_read(queue.get(), &event, small, sizeof(small), 0), -FI_ETOOSMALL);
  fi_eq_entry read{};
  for (int i = 0; i < 2; ++i) EXPECT_GT(fi_eq_read(queue.get(), &event, &read, sizeof(read), 0), 0);
}

TEST(EventQueueTest, ItsDescriptorIsReadableWhileThereIsAnEvent) {
  fi_eq_attr attributes{};
  attributes.wait_obj = FI_WAIT_FD;
  fid_eq* made = nullptr;
  ASSERT_EQ(open_event_queue(nullptr, &attributes, &made, nullptr), 0);
  const Queue queue(made);
  pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
  ASSERT_EQ(fi_control(&queue->fid, FI_GETWAIT, &readable.fd), 0);
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  const fi_eq_entry entry{};
  for (int i = 0; i < 2; ++i) {
    ASSERT_GT(fi_eq_write(queue.get(), FI_NOTIFY, &entry, sizeof(entry), 0), 0);
  }
  uint32_t event = 0;
  fi_eq_entry read{};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(poll(&readable, 1, 0), 1);
    EXPECT_GT(fi_eq_read(queue.get(), &event, &read, sizeof(read), 0), 0);
  }
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  EXPECT_EQ(fi_control(&open(2)->fid, FI_GETWAIT, &readable.fd), -FI_ENODATA);
}

TEST(EventQueueTest, AReaderWaitsForAnEvent) {
  const Queue queue = open(2);
  uint32_t event = 0;
  fi_eq_entry read{};
  EXPECT_EQ(fi_eq_sread(queue.get(), &event, &read, sizeof(read), 1, 0), -FI_EAGAIN);
  Thread writer = start_thread("writer", [&queue] {
    const fi_eq_entry entry{.fid = nullptr, .context = nullptr, .data = 7};
    EXPECT_GT(fi_eq_write(queue.get(), FI_NOTIFY, &entry, sizeof(entry), 0), 0);
  });
  EXPECT_EQ(fi_eq_sread(queue.get(), &event, &read, sizeof(read), -1, 0), ssize_t{sizeof(read)});
  EXPECT_EQ(read.data, 7u);
  writer.join();
}

}  // namespace
}  // namespace verbena::ofi

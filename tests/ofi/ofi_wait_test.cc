// Threads that sleep until a completion queue or a counter of the provider has something: in
// fi_cq_sread and fi_cntr_wait, and in poll() at a descriptor.
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

#include "src/base/runtime.h"
#include "verbena/clock.h"

namespace verbena {
namespace {

constexpr int kPatienceMs = 60'000;

struct CloseAny {
  template <typename Handle>
  void operator()(Handle* handle) const {
    EXPECT_EQ(fi_close(&handle->fid), 0);
  }
};
template <typename Handle>
using Opened = std::unique_ptr<Handle, CloseAny>;

// An endpoint whose sends and receives have queues of their own.
struct WaitingEnd {
  Opened<fid_av> vector;
  Opened<fid_cq> sends;
  Opened<fid_cq> receives;
  Opened<fid_cntr> received;
  Opened<fid_ep> endpoint;
  fi_addr_t other = 0;
};

class OfiWaitTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("FI_PROVIDER_PATH", VERBENA_PROVIDER_PATH, 1);
    setenv("FI_PROVIDER", "verbena", 1);
    setenv("VERBENA_JOB_SECRET", "a secret of these tests alone", 1);
  }

  void make(fi_wait_obj object) {
    fi_info* const hints = fi_allocinfo();
    hints->caps = FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    fi_info* found = nullptr;
    const int result = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found);
    fi_freeinfo(hints);
    ASSERT_EQ(result, 0);
    info_.reset(found);
    fid_fabric* fabric = nullptr;
    ASSERT_EQ(fi_fabric(info_->fabric_attr, &fabric, nullptr), 0);
    fabric_.reset(fabric);
    for (WaitingEnd* end : {&a_, &b_}) open(*end, object);
    meet(a_, b_);
    meet(b_, a_);
  }

  void open(WaitingEnd& end, fi_wait_obj object) {
    // Each has a domain of its own, and so a lock of its own.
    Opened<fid_domain>& domain = &end == &a_ ? domain_a_ : domain_b_;
    fid_domain* made = nullptr;
    ASSERT_EQ(fi_domain(fabric_.get(), info_.get(), &made, nullptr), 0);
    domain.reset(made);
    fi_av_attr vector_attributes{};
    fid_av* vector = nullptr;
    ASSERT_EQ(fi_av_open(made, &vector_attributes, &vector, nullptr), 0);
    end.vector.reset(vector);
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_TAGGED;
    attributes.wait_obj = object;
    for (Opened<fid_cq>* queue : {&end.sends, &end.receives}) {
      fid_cq* opened = nullptr;
      ASSERT_EQ(fi_cq_open(made, &attributes, &opened, nullptr), 0);
      queue->reset(opened);
    }
    fi_cntr_attr counter_attributes{};
    counter_attributes.wait_obj = object;
    fid_cntr* counter = nullptr;
    ASSERT_EQ(fi_cntr_open(made, &counter_attributes, &counter, nullptr), 0);
    end.received.reset(counter);
    fid_ep* endpoint = nullptr;
    ASSERT_EQ(fi_endpoint(made, info_.get(), &endpoint, nullptr), 0);
    end.endpoint.reset(endpoint);
    ASSERT_EQ(fi_ep_bind(endpoint, &vector->fid, 0), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.sends->fid, FI_TRANSMIT), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &end.receives->fid, FI_RECV), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &counter->fid, FI_RECV), 0);
    ASSERT_EQ(fi_enable(endpoint), 0);
  }
  static void meet(WaitingEnd& end, WaitingEnd& other) {
    char name[64];
    size_t size_bytes = sizeof(name);
    ASSERT_EQ(fi_getname(&other.endpoint->fid, name, &size_bytes), 0);
    ASSERT_EQ(fi_av_insert(end.vector.get(), name, 1, &end.other, 0, nullptr), 1);
  }

  static void post_receive(WaitingEnd& end, uint64_t* number) {
    EXPECT_EQ(fi_trecv(end.endpoint.get(), number, sizeof(*number), nullptr, FI_ADDR_UNSPEC, 1, 0,
                       nullptr),
              0);
  }
  static void send(WaitingEnd& end, uint64_t number) {
    ssize_t result = 0;
    const uint64_t start_ns = now_ns();
    while ((result = fi_tinject(end.endpoint.get(), &number, sizeof(number), end.other, 1)) ==
               -FI_EAGAIN &&
           now_ns() - start_ns < kPatienceMs * uint64_t{1'000'000}) {
      fi_cq_tagged_entry entry;
      EXPECT_EQ(fi_cq_read(end.sends.get(), &entry, 1), -FI_EAGAIN);
    }
    EXPECT_EQ(result, 0);
  }
  static void sleep_for_a_message(WaitingEnd& end) {
    fi_cq_tagged_entry entry{};
    EXPECT_EQ(fi_cq_sread(end.receives.get(), &entry, 1, nullptr, kPatienceMs), 1);
  }
  // A connection, and both have taken all messages of it. What is sent before there is one needs
  // the sender's progress.
  void connect() {
    uint64_t number = 0;
    post_receive(b_, &number);
    send(a_, 1);
    const uint64_t start_ns = now_ns();
    fi_cq_tagged_entry entry{};
    ssize_t got = -FI_EAGAIN;
    while (got == -FI_EAGAIN && now_ns() - start_ns < kPatienceMs * uint64_t{1'000'000}) {
      EXPECT_EQ(fi_cq_read(a_.sends.get(), &entry, 1), -FI_EAGAIN);
      got = fi_cq_read(b_.receives.get(), &entry, 1);
    }
    EXPECT_EQ(got, 1);
    post_receive(a_, &number);
    send(b_, 1);
    sleep_for_a_message(a_);
  }

  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> info_{nullptr, &fi_freeinfo};
  Opened<fid_fabric> fabric_;
  Opened<fid_domain> domain_a_;
  Opened<fid_domain> domain_b_;
  WaitingEnd a_;
  WaitingEnd b_;
};

uint64_t used_cpu_ns() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1'000;
}

TEST_F(OfiWaitTest, ThreadsThatSleepWakeEachOther) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  constexpr uint64_t kNumbers = 500;
  Thread answering = start_thread("answering", [&] {
    for (uint64_t i = 0; i < kNumbers; ++i) {
      uint64_t number = 0;
      post_receive(b_, &number);
      sleep_for_a_message(b_);
      EXPECT_EQ(number, i);
      send(b_, number);
    }
  });
  Random random(seed);
  for (uint64_t i = 0; i < kNumbers; ++i) {
    uint64_t number = 0;
    post_receive(a_, &number);
    if (random.below(4) == 0) sleep_ns(random.below(200'000));
    send(a_, i);
    sleep_for_a_message(a_);
    EXPECT_EQ(number, i);
  }
  answering.join();
}

TEST_F(OfiWaitTest, WhoSleepsNeedsHardlyAnyCpuTime) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  connect();
  constexpr int kIdleMs = 500;
  const uint64_t before_ns = used_cpu_ns();
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_sread(a_.receives.get(), &entry, 1, nullptr, kIdleMs), -FI_EAGAIN);
  EXPECT_EQ(fi_cntr_wait(a_.received.get(), 100, kIdleMs), -FI_ETIMEDOUT);
  EXPECT_LT(used_cpu_ns() - before_ns, 2 * kIdleMs * uint64_t{1'000'000} / 5);
}

TEST_F(OfiWaitTest, EachOfTwoThreadsIsWokenWhoeverTakesTheEvent) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  connect();
  const uint64_t counted = fi_cntr_read(a_.received.get());
  uint64_t number = 0;
  post_receive(a_, &number);
  Thread at_queue = start_thread("at the queue", [&] { sleep_for_a_message(a_); });
  Thread at_counter = start_thread("at the counter", [&] {
    EXPECT_EQ(fi_cntr_wait(a_.received.get(), counted + 1, kPatienceMs), 0);
  });
  sleep_ns(5'000'000);
  send(b_, 9);
  at_queue.join();
  at_counter.join();
  EXPECT_EQ(number, 9u);
}

// No endpoint wakes them, now and then, for other reasons.
TEST_F(OfiWaitTest, EachOfTwoThreadsAtACounterIsWokenAtItsOwnCount) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  fi_cntr_attr attributes{};
  attributes.wait_obj = FI_WAIT_UNSPEC;
  fid_cntr* opened = nullptr;
  ASSERT_EQ(fi_cntr_open(domain_a_.get(), &attributes, &opened, nullptr), 0);
  const Opened<fid_cntr> counter(opened);
  constexpr uint64_t kRounds = 2000;
  std::atomic<uint64_t> reached[2] = {0, 0};
  const auto wait_for = [&](uint64_t which) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      EXPECT_EQ(fi_cntr_wait(counter.get(), 2 * round + which + 1, -1), 0);
      ++reached[which];
    }
  };
  Thread at_odd = start_thread("at odd counts", [&] { wait_for(0); });
  Thread at_even = start_thread("at even counts", [&] { wait_for(1); });
  for (uint64_t count = 0; count < 2 * kRounds && !HasFailure(); ++count) {
    sleep_ns(100'000);  // mostly they are asleep by then
    EXPECT_EQ(fi_cntr_add(counter.get(), 1), 0);
    const uint64_t start_ns = now_ns();
    while (reached[count % 2] == count / 2 &&
           now_ns() - start_ns < kPatienceMs * uint64_t{1'000'000}) {
      sleep_ns(10'000);
    }
    EXPECT_EQ(reached[count % 2], count / 2 + 1);
  }
  EXPECT_EQ(fi_cntr_set(counter.get(), 2 * kRounds), 0);
  at_odd.join();
  at_even.join();
}

TEST_F(OfiWaitTest, ASignalEndsASleep) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  Thread signalling = start_thread("signalling", [&] {
    sleep_ns(20'000'000);
    EXPECT_EQ(fi_cq_signal(a_.receives.get()), 0);
  });
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_sread(a_.receives.get(), &entry, 1, nullptr, -1), -FI_EAGAIN);
  signalling.join();
}

TEST_F(OfiWaitTest, ADescriptorBecomesReadableOnceSomethingComes) {
  make(FI_WAIT_FD);
  ASSERT_FALSE(HasFatalFailure());
  connect();
  Thread sending = start_thread("sending", [&] {
    sleep_ns(20'000'000);
    send(b_, 9);
  });
  uint64_t number = 0;
  post_receive(a_, &number);
  int queue = -1;
  int counter = -1;
  ASSERT_EQ(fi_control(&a_.receives->fid, FI_GETWAIT, &queue), 0);
  ASSERT_EQ(fi_control(&a_.received->fid, FI_GETWAIT, &counter), 0);
  fid* watched[] = {&a_.receives->fid, &a_.received->fid};
  fi_cq_tagged_entry entry{};
  ssize_t got = 0;
  const uint64_t before_ns = used_cpu_ns();
  const uint64_t start_ns = now_ns();
  while ((got = fi_cq_read(a_.receives.get(), &entry, 1)) == -FI_EAGAIN &&
         now_ns() - start_ns < kPatienceMs * uint64_t{1'000'000}) {
    static_cast<void>(fi_cntr_read(a_.received.get()));
    if (fi_trywait(fabric_.get(), watched, 2) != 0) continue;
    pollfd readable[] = {{.fd = queue, .events = POLLIN, .revents = 0},
                         {.fd = counter, .events = POLLIN, .revents = 0}};
    poll(readable, 2, kPatienceMs);
  }
  EXPECT_EQ(got, 1);
  EXPECT_EQ(number, 9u);
  EXPECT_LT(used_cpu_ns() - before_ns, uint64_t{1'000'000'000});
  sending.join();
}

TEST_F(OfiWaitTest, OnlyQueuesThatWereOpenedForItHaveADescriptor) {
  make(FI_WAIT_UNSPEC);
  ASSERT_FALSE(HasFatalFailure());
  int descriptor = -1;
  EXPECT_EQ(fi_control(&a_.receives->fid, FI_GETWAIT, &descriptor), -FI_ENODATA);
  EXPECT_EQ(fi_control(&a_.received->fid, FI_GETWAIT, &descriptor), -FI_ENODATA);
}

}  // namespace
}  // namespace verbena

// What a program, its user or the machine gets wrong: the provider refuses it with an error of
// libfabric and one line on stderr with the cause, the limit and the remedy, and nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "verbena/clock.h"

namespace verbena {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

constexpr uint64_t kPatienceNs = 60'000'000'000;

struct CloseIt {
  template <typename Handle>
  void operator()(Handle* handle) const {
    EXPECT_EQ(fi_close(&handle->fid), 0);
  }
};
template <typename Handle>
using Owner = std::unique_ptr<Handle, CloseIt>;

struct OneEnd {
  Owner<fid_domain> domain;
  Owner<fid_av> vector;
  Owner<fid_cq> queue;
  Owner<fid_ep> endpoint;
  fi_addr_t self = 0;
  fi_addr_t other = 0;
};

class OfiBadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("FI_PROVIDER_PATH", VERBENA_PROVIDER_PATH, 1);
    setenv("FI_PROVIDER", "verbena", 1);
    setenv("VERBENA_JOB_SECRET", "a secret of these tests alone", 1);
    unsetenv("VERBENA_DEVICE");
  }
  void TearDown() override { unsetenv("VERBENA_DEVICE"); }

  // What fi_domain says.
  int open_domain(OneEnd& end) {
    fi_info* const hints = fi_allocinfo();
    hints->caps = FI_TAGGED | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type = FI_EP_RDM;
    fi_info* found = nullptr;
    const int result = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found);
    fi_freeinfo(hints);
    if (result != 0) return result;
    info_.reset(found);
    fid_fabric* fabric = nullptr;
    if (const int error = fi_fabric(info_->fabric_attr, &fabric, nullptr); error != 0) return error;
    fabrics_.emplace_back(fabric);
    fid_domain* domain = nullptr;
    const int error = fi_domain(fabric, info_.get(), &domain, nullptr);
    end.domain.reset(domain);
    return error;
  }
  void open(OneEnd& end) {
    ASSERT_EQ(open_domain(end), 0);
    fi_av_attr vector_attributes{};
    fid_av* vector = nullptr;
    ASSERT_EQ(fi_av_open(end.domain.get(), &vector_attributes, &vector, nullptr), 0);
    end.vector.reset(vector);
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_TAGGED;
    fid_cq* queue = nullptr;
    ASSERT_EQ(fi_cq_open(end.domain.get(), &attributes, &queue, nullptr), 0);
    end.queue.reset(queue);
    fid_ep* endpoint = nullptr;
    ASSERT_EQ(fi_endpoint(end.domain.get(), info_.get(), &endpoint, nullptr), 0);
    end.endpoint.reset(endpoint);
    ASSERT_EQ(fi_ep_bind(endpoint, &vector->fid, 0), 0);
    ASSERT_EQ(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), 0);
    ASSERT_EQ(fi_enable(endpoint), 0);
  }
  void open_both() {
    open(a_);
    open(b_);
    ASSERT_FALSE(HasFatalFailure());
    meet(a_, b_);
    meet(b_, a_);
  }
  static void meet(OneEnd& end, OneEnd& other) {
    char name[64];
    for (const auto& [whose, number] : {std::pair{&end, &end.self}, {&other, &end.other}}) {
      size_t size_bytes = sizeof(name);
      ASSERT_EQ(fi_getname(&whose->endpoint->fid, name, &size_bytes), 0);
      ASSERT_EQ(fi_av_insert(end.vector.get(), name, 1, number, 0, nullptr), 1);
    }
  }

  // The outcome of a send, once it is another one than -FI_EAGAIN.
  ssize_t send(OneEnd& end, const void* bytes, size_t size_bytes) {
    ssize_t result = -FI_EAGAIN;
    const uint64_t start_ns = now_ns();
    while (result == -FI_EAGAIN && now_ns() - start_ns < kPatienceNs) {
      result = fi_tsend(end.endpoint.get(), bytes, size_bytes, nullptr, end.other, 1, nullptr);
      if (result != -FI_EAGAIN) break;
      for (OneEnd* one : {&a_, &b_}) EXPECT_EQ(error_at(*one, 0), 0);
    }
    return result;
  }
  // The error of the next completion; 0 for a good one, and where none has come in so long.
  static int error_at(OneEnd& end, uint64_t patience_ns = kPatienceNs) {
    const uint64_t start_ns = now_ns();
    fi_cq_tagged_entry entry{};
    ssize_t got = 0;
    while ((got = fi_cq_read(end.queue.get(), &entry, 1)) == -FI_EAGAIN) {
      if (now_ns() - start_ns >= patience_ns) return 0;
    }
    if (got != -FI_EAVAIL) return 0;
    fi_cq_err_entry error{};
    EXPECT_EQ(fi_cq_readerr(end.queue.get(), &error, 0), 1);
    return error.err;
  }

  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> info_{nullptr, &fi_freeinfo};
  std::vector<Owner<fid_fabric>> fabrics_;
  OneEnd a_;
  OneEnd b_;
};

TEST_F(OfiBadInputTest, ADeviceThatIsNotThere) {
  setenv("VERBENA_DEVICE", "nosuchdevice0", 1);
  CaptureStderr();
  EXPECT_EQ(open_domain(a_), -FI_ENODEV);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("nosuchdevice0"));
}

TEST_F(OfiBadInputTest, AMessageBeyondTheLimit) {
  ASSERT_NO_FATAL_FAILURE(open_both());
  const size_t limit = info_->ep_attr->max_msg_size;
  CaptureStderr();
  // Nobody reads from there.
  EXPECT_EQ(fi_tsend(a_.endpoint.get(), &a_, limit + 1, nullptr, a_.other, 1, nullptr),
            -FI_EMSGSIZE);
  EXPECT_THAT(GetCapturedStderr(),
              AllOf(HasSubstr(std::to_string(limit + 1)), HasSubstr(std::to_string(limit))));
}

// Together they have more bytes than a size_t counts.
TEST_F(OfiBadInputTest, PiecesBeyondTheLimit) {
  ASSERT_NO_FATAL_FAILURE(open_both());
  char bytes[16] = {};
  const iovec pieces[] = {{bytes, SIZE_MAX - 7}, {bytes, sizeof(bytes)}};
  CaptureStderr();
  for (const fi_addr_t to : {a_.self, a_.other}) {
    EXPECT_EQ(fi_tsendv(a_.endpoint.get(), pieces, nullptr, 2, to, 1, nullptr), -FI_EMSGSIZE);
    EXPECT_EQ(fi_writev(a_.endpoint.get(), pieces, nullptr, 2, to, 0, 1, nullptr), -FI_EMSGSIZE);
    EXPECT_EQ(fi_readv(a_.endpoint.get(), pieces, nullptr, 2, to, 0, 1, nullptr), -FI_EMSGSIZE);
    const fi_ioc values[] = {{bytes, SIZE_MAX}, {bytes, 2}};
    EXPECT_EQ(
        fi_atomicv(a_.endpoint.get(), values, nullptr, 2, to, 0, 1, FI_UINT64, FI_SUM, nullptr),
        -FI_EMSGSIZE);
  }
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("send it in parts"));
}

TEST_F(OfiBadInputTest, SecretsThatDiffer) {
  ASSERT_NO_FATAL_FAILURE(open(a_));
  setenv("VERBENA_JOB_SECRET", "another secret than the first one's", 1);
  ASSERT_NO_FATAL_FAILURE(open(b_));
  meet(a_, b_);
  meet(b_, a_);
  CaptureStderr();
  // The first one waits for a connection, and its completion says that there is none.
  EXPECT_EQ(send(a_, "hello", 5), 0);
  EXPECT_EQ(error_at(a_), FI_ECONNABORTED);
  EXPECT_EQ(send(a_, "hello", 5), -FI_ECONNABORTED);
  const std::string said = GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("secret"));
}

}  // namespace
}  // namespace verbena

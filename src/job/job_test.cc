// Ranks as threads of this process: what they agree on, and what each says when they do not.
#include "verbena/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/job/member.h"
#include "src/job/pmi_client.h"
#include "tests/support/own_port.h"

namespace verbena {
namespace {

using testing::HasSubstr;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

class JobTest : public testing::Test {
 protected:
  static std::string free_coordinator() { return "127.0.0.1:" + std::to_string(test::own_port()); }

  uint16_t coordinator_port() const {
    return static_cast<uint16_t>(std::stoi(coordinator_.substr(coordinator_.find(':') + 1)));
  }

  JobOptions options(int rank, int size) const {
    JobOptions options;
    options.rank = rank;
    options.size = size;
    options.coordinator = coordinator_;
    options.secret = secret_;
    return options;
  }

  // Each rank in a thread of its own.
  static void run(const std::vector<JobOptions>& ranks,
                  const std::function<void(size_t index, Result<Job> job)>& body) {
    std::vector<Thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.push_back(start_thread("rank", [&, i] { body(i, Job::join(ranks[i])); }));
    }
    for (Thread& thread : threads) thread.join();
  }
  void run_all(int size, const std::function<void(Job& job)>& body) {
    std::vector<JobOptions> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(options(rank, size));
    run(ranks, [&](size_t, Result<Job> job) {
      ASSERT_TRUE(job.ok()) << job.status().message();
      body(*job);
    });
  }

  // For what a rank does until it has waited long enough: again with more time where the others had
  // too little to come to it, as on a machine that is busy with something else.
  void with_growing_patience(const std::function<bool(int64_t timeout_ns)>& came) {
    int64_t timeout_ns = 1'000'000'000;
    while (!came(timeout_ns) && !HasFailure()) {
      ASSERT_LT(timeout_ns, 100'000'000'000);
      timeout_ns *= 4;
      coordinator_ = free_coordinator();
    }
  }

  JobSecret secret_ = JobSecret::random();
  std::string coordinator_ = free_coordinator();
};

TEST_F(JobTest, EachIsConnectedWithEach) {
  static constexpr int kSize = 5;
  run_all(kSize, [](Job& job) {
    EXPECT_EQ(job.size(), kSize);
    for (int peer = 0; peer < kSize; ++peer) {
      EXPECT_FALSE(job.host(peer).empty());
      if (peer == job.rank()) continue;
      const Result<uint32_t> theirs =
          job.peer(peer).exchange<uint32_t>(1, static_cast<uint32_t>(job.rank()), Job::kTimeoutNs);
      ASSERT_TRUE(theirs.ok()) << theirs.status().message();
      EXPECT_EQ(*theirs, static_cast<uint32_t>(peer));
    }
    EXPECT_TRUE(job.barrier().ok());
  });
}

TEST_F(JobTest, GathersAndBroadcastsFromAnyRoot) {
  run_all(4, [](Job& job) {
    for (int root = 0; root < 4; ++root) {
      const auto all = job.gather(bytes_of("from " + std::to_string(job.rank())), root);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_EQ(all->size(), job.rank() == root ? 4u : 0u);
      for (size_t rank = 0; rank < all->size(); ++rank) {
        EXPECT_EQ((*all)[rank], bytes_of("from " + std::to_string(rank)));
      }
      const auto said = job.broadcast(bytes_of("by " + std::to_string(job.rank())), root);
      ASSERT_TRUE(said.ok()) << said.status().message();
      EXPECT_EQ(*said, bytes_of("by " + std::to_string(root)));
    }
  });
}

TEST_F(JobTest, ABarrierHoldsUntilTheLastOneCame) {
  std::atomic<int> arrived{0};
  run_all(3, [&](Job& job) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ASSERT_TRUE(job.barrier().ok());
      EXPECT_GE(arrived.load(), 3 * round);
      ASSERT_TRUE(job.barrier().ok());
    }
  });
}

TEST_F(JobTest, OneRankAloneNeedsNobody) {
  JobOptions alone = options(0, 1);
  alone.coordinator.clear();
  Result<Job> job = Job::join(alone);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE(job->barrier().ok());
  EXPECT_EQ(job->gather(bytes_of("x"))->size(), 1u);
}

TEST_F(JobTest, ALateRankIsNamed) {
  with_growing_patience([this](int64_t timeout_ns) {
    std::vector<JobOptions> ranks = {options(0, 4), options(2, 4)};
    for (JobOptions& rank : ranks) rank.timeout_ns = timeout_ns;
    std::string message;
    run(ranks, [&message](size_t index, const Result<Job>& job) {
      ASSERT_FALSE(job.ok());
      if (index != 0) return;
      EXPECT_EQ(job.status().code(), StatusCode::kTimeout);
      message = job.status().message();
    });
    if (message.find("2 of 4 ranks joined") == std::string::npos) return false;
    EXPECT_THAT(message, HasSubstr("rank 1, 3 did not"));
    return true;
  });
}

TEST_F(JobTest, ARankWithoutACoordinatorSaysSo) {
  JobOptions lonely = options(1, 2);
  lonely.timeout_ns = 300'000'000;
  const Result<Job> job = Job::join(lonely);
  ASSERT_FALSE(job.ok());
  EXPECT_THAT(job.status().message(), HasSubstr("rank 0 was not found"));
  EXPECT_THAT(job.status().message(), HasSubstr(coordinator_));
}

TEST_F(JobTest, AnotherSecretIsRefused) {
  with_growing_patience([this](int64_t timeout_ns) {
    std::vector<JobOptions> ranks = {options(0, 2), options(1, 2)};
    ranks[0].timeout_ns = ranks[1].timeout_ns = timeout_ns;
    ranks[1].secret = JobSecret::random();
    Status status;
    run(ranks, [&status](size_t index, const Result<Job>& job) {
      ASSERT_FALSE(job.ok());
      if (index == 1) status = job.status();
    });
    if (status.code() == StatusCode::kTimeout) return false;
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(status.message(), HasSubstr("secret"));
    return true;
  });
}

TEST_F(JobTest, ContradictionsAreNamedToBoth) {
  const auto expect_both = [&](const JobOptions& other, const char* text) {
    coordinator_ = free_coordinator();
    JobOptions first = options(0, 3);
    JobOptions second = other;
    second.coordinator = coordinator_;
    run({first, second}, [&](size_t, const Result<Job>& job) {
      ASSERT_FALSE(job.ok());
      EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(job.status().message(), HasSubstr(text));
    });
  };
  expect_both(options(1, 2), "counts 2 ranks, rank 0 counts 3");
}

TEST_F(JobTest, ARankThatStartsTwiceIsNamed) {
  std::vector<JobOptions> ranks = {options(0, 3), options(1, 3), options(1, 3)};
  std::atomic<int> named{0};
  run(ranks, [&](size_t, const Result<Job>& job) {
    ASSERT_FALSE(job.ok());
    EXPECT_THAT(job.status().message(), HasSubstr("rank 1 was started twice"));
    ++named;
  });
  EXPECT_EQ(named, 3);
}

// They know the secret, and then one says nothing and the other a part of a frame.
TEST_F(JobTest, SilentRanksAreNamedAndHoldUpNobody) {
  const uint16_t port = coordinator_port();
  // The beginning of a TLS record of 64 bytes.
  constexpr std::string_view kHalfFrame("\x17\x03\x03\0\x40xyz", 8);
  std::vector<Thread> silent;
  for (const std::string_view said : {std::string_view(), kHalfFrame}) {
    silent.push_back(start_thread("silent", [this, port, said] {
      auto rank = ControlConnection::connect("127.0.0.1", port, secret_, Job::kTimeoutNs);
      ASSERT_TRUE(rank.ok()) << rank.status().message();
      ASSERT_EQ(send(rank->descriptor(), said.data(), said.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(said.size()));
      // Until rank 0 gives up.
      while (!rank->peer_closed()) sleep_ns(1'000'000);
    }));
  }
  run({options(0, 4), options(2, 4)}, [&](size_t index, const Result<Job>& job) {
    ASSERT_FALSE(job.ok());
    EXPECT_THAT(job.status().message(), HasSubstr("rank 1, 3 did not join: 127.0.0.1:")) << index;
    EXPECT_THAT(job.status().message(), HasSubstr("not sent its rank within 10 s"));
  });
}

TEST_F(JobTest, ARankThatComesLaterLearnsWhyThereIsNoJob) {
  const auto expect_reason = [](size_t, const Result<Job>& job) {
    ASSERT_FALSE(job.ok());
    EXPECT_THAT(job.status().message(), HasSubstr("counts 2 ranks, rank 0 counts 3"));
  };
  const Thread coordinator = start_thread("rank-0", [&] { run({options(0, 3)}, expect_reason); });
  run({options(1, 2)}, expect_reason);  // refused: rank 0 has its reason
  run({options(2, 3)}, expect_reason);
}

TEST_F(JobTest, ARankThatDiesUnknownKeepsNoLaterOneFromTheReason) {
  const auto expect_reason = [](size_t, const Result<Job>& job) {
    ASSERT_FALSE(job.ok());
    EXPECT_THAT(job.status().message(), HasSubstr("did not join: peer 127.0.0.1:"));
  };
  const Thread coordinator = start_thread("rank-0", [&] { run({options(0, 4)}, expect_reason); });
  // It ends before it has said which rank it is.
  ASSERT_TRUE(
      ControlConnection::connect("127.0.0.1", coordinator_port(), secret_, Job::kTimeoutNs).ok());
  run({options(1, 4)}, expect_reason);  // refused: rank 0 has its reason
  run({options(2, 4)}, expect_reason);
}

// Rank 1 comes late, and then does not say that all have come to it.
TEST_F(JobTest, JoiningTakesNoLongerThanItsTimeout) {
  with_growing_patience([this](int64_t timeout_ns) {
    std::atomic<bool> ended{false};
    const Thread late = start_thread("rank-1", [&] {
      sleep_ns(static_cast<uint64_t>(timeout_ns) / 4 * 3);
      auto rank = ControlConnection::connect("127.0.0.1", coordinator_port(), secret_, timeout_ns);
      if (rank.ok()) static_cast<void>(rank->send(job::encode(job::JoinRequest{1, 2, 1, "late"})));
      while (!ended) sleep_ns(1'000'000);
    });
    JobOptions first = options(0, 2);
    first.timeout_ns = timeout_ns;
    const uint64_t begun_ns = now_ns();
    const Result<Job> job = Job::join(first);
    const uint64_t took_ns = now_ns() - begun_ns;
    ended = true;
    EXPECT_EQ(job.status().code(), StatusCode::kTimeout);
    return took_ns < static_cast<uint64_t>(timeout_ns) / 2 * 3;
  });
}

TEST_F(JobTest, ADeadRankIsNamed) {
  run_all(3, [](Job& job) {
    if (job.rank() == 2) return;  // its connections close
    const Status status = job.barrier();
    if (job.rank() == 0) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_THAT(status.message(), HasSubstr("rank 2 on "));
    } else {
      EXPECT_FALSE(status.ok());
    }
  });
}

TEST_F(JobTest, DifferentCallsAreNoticed) {
  run_all(2, [](Job& job) {
    if (job.rank() == 1) {
      ASSERT_TRUE(job.gather(bytes_of("x")).ok());
      EXPECT_FALSE(job.barrier().ok());
    } else {
      EXPECT_EQ(job.barrier().code(), StatusCode::kProtocolViolation);
    }
  });
}

// Else it would end the others with the first rank that is done. Rank 0 is a process of its own,
// which finds its launcher by the environment; the other one finds it by what it left there.
TEST_F(JobTest, TheLauncherHearsThatARankEndsWell) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const FileDescriptor client(sockets[0]);
  const FileDescriptor server(sockets[1]);
  const std::map<std::string, std::string> environment = {
      {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", std::to_string(client.get())}};
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  JobOptions first = options(0, 2);
  first.coordinator.clear();
  JobOptions second = options(1, 2);
  Thread other;
  std::string commands;
  Thread launcher = start_thread("launcher", [&] {
    std::string line;
    for (char byte = 0; recv(server.get(), &byte, 1, 0) == 1;) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      const std::string command = job::pmi_value(line, "cmd");
      commands += command + " ";
      std::string answer = "cmd=" + command + "_result rc=0\n";
      if (command == "init") answer = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
      if (command == "get_my_kvsname") answer = "cmd=my_kvsname kvsname=kvs\n";
      if (command == "put") {
        const std::string list = job::pmi_value(line, "value");
        second.coordinator = list.substr(list.rfind(',') + 1);
      }
      if (command == "barrier_in") {
        answer = "cmd=barrier_out\n";
        other = start_thread("rank 1", [&second] { EXPECT_TRUE(Job::join(second).ok()); });
      }
      if (command == "finalize") answer = "cmd=finalize_ack\n";
      EXPECT_EQ(send(server.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
      line.clear();
    }
  });
  const auto work = [&first] {
    const Result<Job> job = Job::join(first);
    std::exit(job.ok() ? 0 : 1);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "");
  shutdown(client.get(), SHUT_RDWR);
  launcher.join();
  other.join();
  for (const auto& [name, value] : environment) unsetenv(name.c_str());
  EXPECT_EQ(commands, "init get_my_kvsname put barrier_in finalize ");
}

TEST_F(JobTest, WhatIsMissingIsNamed) {
  JobOptions missing = options(0, 2);
  missing.coordinator.clear();
  EXPECT_THAT(Job::join(missing).status().message(), HasSubstr("--coordinator"));
  missing = options(2, 2);
  EXPECT_THAT(Job::join(missing).status().message(), HasSubstr("rank 2 of 2"));
  missing = options(0, 2);
  missing.coordinator = "host:port";
  EXPECT_THAT(Job::join(missing).status().message(),
              HasSubstr("'host:port' is not of the form HOST:PORT"));
  for (const char* none : {",", "127.0.0.1:1,127.0.0.1:2"}) {
    missing = options(1, 2);
    missing.coordinator = none;
    const Result<Job> job = Job::join(missing);
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.status().code(), StatusCode::kNotFound) << job.status().message();
    EXPECT_THAT(job.status().message(), HasSubstr(none));
  }
  missing = options(0, 2);
  missing.secret.reset();
  EXPECT_THAT(Job::join(missing).status().message(), HasSubstr("VERBENA_JOB_SECRET_FILE"));
  missing = options(-1, -1);
  EXPECT_THAT(Job::join(missing).status().message(), HasSubstr("mpiexec or srun"));
}

}  // namespace
}  // namespace verbena

#include "src/job/pmi_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"

namespace verbena::job {
namespace {

using testing::HasSubstr;

constexpr int64_t kPatienceNs = 120'000'000'000;

// A launcher's server for one process, as far as the protocol needs one.
class Server {
 public:
  Server() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    client_ = FileDescriptor(sockets[0]);
    server_ = FileDescriptor(sockets[1]);
  }
  int descriptor() const { return client_.get(); }
  void hang_up() { server_.reset(); }

  void start(const std::string& version) {
    thread_ = start_thread("pmi", [this, version] { serve(version); });
  }
  ~Server() {
    shutdown(client_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

 private:
  void serve(const std::string& version) {
    std::map<std::string, std::string> space;
    std::string unread;
    char byte = 0;
    while (recv(server_.get(), &byte, 1, 0) == 1) {
      if (byte != '\n') {
        unread += byte;
        continue;
      }
      const std::string command = pmi_value(unread, "cmd");
      const std::string key = pmi_value(unread, "key");
      if (command == "init") {
        say("cmd=response_to_init pmi_version=" + version + " pmi_subversion=1 rc=0");
      } else if (command == "get_my_kvsname") {
        say("cmd=my_kvsname kvsname=kvs_1");
      } else if (command == "put" && pmi_value(unread, "kvsname") == "kvs_1") {
        space[key] = pmi_value(unread, "value");
        say("cmd=put_result rc=0 msg=success");
      } else if (command == "barrier_in") {
        say("cmd=barrier_out");
      } else if (command == "get" && space.count(key) > 0) {
        say("cmd=get_result rc=0 msg=success value=" + space[key]);
      } else {
        say("cmd=get_result rc=-1 msg=key_not_found value=unknown");
      }
      unread.clear();
    }
  }
  // In pieces, as a stream may bring it.
  void say(const std::string& line) {
    for (const char c : line + "\n") EXPECT_EQ(send(server_.get(), &c, 1, MSG_NOSIGNAL), 1);
  }

  FileDescriptor client_;
  FileDescriptor server_;
  Thread thread_;
};

TEST(PmiClientTest, PassesAValueOn) {
  Server server;
  server.start("1");
  Result<PmiClient> client = PmiClient::start(server.descriptor(), kPatienceNs);
  ASSERT_TRUE(client.ok()) << client.status().message();
  ASSERT_TRUE(client->put("where", "10.0.0.1:7470,127.0.0.1:7470").ok());
  ASSERT_TRUE(client->barrier().ok());
  const Result<std::string> value = client->get("where");
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(*value, "10.0.0.1:7470,127.0.0.1:7470");
  EXPECT_FALSE(client->get("elsewhere").ok());
}

TEST(PmiClientTest, ANegativeTimeOutIsNone) {
  Server server;
  // Nothing is there to read before the client waits for it.
  const Thread late = start_thread("late", [&server] {
    sleep_ns(10'000'000);
    server.start("1");
  });
  Result<PmiClient> client = PmiClient::start(server.descriptor(), -1);
  ASSERT_TRUE(client.ok()) << client.status().message();
  EXPECT_TRUE(client->barrier().ok());
}

TEST(PmiClientTest, AnotherVersionIsRefusedWithTheRemedy) {
  Server server;
  server.start("2");
  const Result<PmiClient> client = PmiClient::start(server.descriptor(), kPatienceNs);
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(client.status().message(), HasSubstr("VERBENA_COORDINATOR"));
}

TEST(PmiClientTest, AServerThatIsGoneOrSilentIsNamed) {
  Server silent;
  EXPECT_THAT(PmiClient::start(silent.descriptor(), 10'000'000).status().message(),
              HasSubstr("did not answer"));
  Server gone;
  gone.hang_up();
  EXPECT_THAT(PmiClient::start(gone.descriptor(), kPatienceNs).status().message(),
              HasSubstr("is gone"));
  EXPECT_FALSE(PmiClient::start(-1, kPatienceNs).ok());
}

}  // namespace
}  // namespace verbena::job

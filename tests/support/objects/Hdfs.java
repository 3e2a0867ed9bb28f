import java.net.ServerSocket;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A NameNode and a DataNode in one process: Hdfs FOLDER PORT READY DATA. READY takes connections when both work.
 * Clients that ask for the DataNode's host name find 127.0.0.2, where a test may have a proxy at port DATA.
 */
public class Hdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new HdfsConfiguration();
        conf.set("fs.defaultFS", "hdfs://127.0.0.1:" + arguments[1]);
        conf.set("dfs.namenode.name.dir", "file://" + arguments[0] + "/name");
        conf.set("dfs.datanode.data.dir", "file://" + arguments[0] + "/data");
        conf.set("dfs.namenode.http-address", "127.0.0.1:0");
        for (String name : new String[] {"address", "http.address", "ipc.address"}) {
            conf.set("dfs.datanode." + name, "127.0.0.1:0");
        }
        conf.set("dfs.datanode.address", "127.0.0.1:" + arguments[3]);
        conf.set("dfs.datanode.hostname", "127.0.0.2");
        conf.set("dfs.replication", "1");
        conf.set("dfs.ls.limit", "100");
        conf.set("dfs.namenode.safemode.extension", "0");
        conf.set("dfs.namenode.resource.du.reserved", "0");
        DefaultMetricsSystem.setMiniClusterMode(true);
        NameNode.format(conf);
        NameNode name = NameNode.createNameNode(new String[0], conf);
        DataNode.createDataNode(new String[0], conf);
        while (name.getNamesystem().getNumLiveDataNodes() < 1) {
            Thread.sleep(10);
        }
        try (ServerSocket ready = new ServerSocket(Integer.parseInt(arguments[2]))) {
            while (true) {
                ready.accept().close();
            }
        }
    }
}
